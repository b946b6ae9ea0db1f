"""The commit marker of a job: `<job_id>/result.json`, written once, after every object that it names."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from jobs.errors import ResultMissing, StoreUnavailable
from jobs.folders import default_store_url
from jobs.pieces import StoredPiece
from jobs.request import ResolvedRequest
from jobs.store import Store, check_key, open_store


class Result(BaseModel):
    """Everything a viewer needs. A reader that sees it sees a complete job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    job_id: str
    attempt: int
    request: ResolvedRequest
    video_key: str
    report_key: str
    playlist_key: str | None  # None if the runner streams nothing
    pieces: list[StoredPiece]


class ResultURLs(BaseModel):
    """Where each part of a result can be read for a while, by anybody who is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    video: str
    report: str
    playlist: str | None  # names its segments relative to itself: for those see `pieces`
    pieces: dict[str, str]  # by key: the segments, their header, previews, and the three above


def result_key(job_id: str) -> str:
    """Where a job's commit marker lies."""
    return f"{job_id}/result.json"


class NamedStore:
    """The store that a client was given, opened when it is first needed: who only submits needs no boto3."""

    def __init__(self, store: Store | str | None) -> None:
        """store  itself, its URL, or None if nobody has named one"""
        self._store = store

    def open(self) -> Store:
        """Where to put what workers are to find; if nobody has named a store, this user's folder."""
        if self._store is None:
            return open_store(default_store_url())
        if isinstance(self._store, str):
            self._store = open_store(self._store)
        return self._store

    def find(self, told_url: str, job_id: str) -> Store:
        """Where a result is: if nobody has named a store, in the one that the job's last event tells of."""
        if self._store is not None:
            return self.open()
        if not told_url:
            raise StoreUnavailable(f"nothing tells where job {job_id} put its result: name the store, H3_STORE_URL")
        return open_store(told_url)


def read_result(store: Store, job_id: str) -> Result:
    """The committed result. Raises ResultMissing and StoreUnavailable."""
    key = result_key(job_id)
    if store.stat(key) is None:
        raise ResultMissing(
            f"{store.url(key)} does not exist: is this the store that the worker writes to? `h3render gc` may have "
            "deleted it, too"
        )
    try:
        result = Result.model_validate_json(store.get(key))
        for found in (result.video_key, result.report_key, *(piece.key for piece in result.pieces)):
            check_key(found)
    except ValueError as exc:
        raise StoreUnavailable(
            f"{store.url(key)} is no result that this version of h3render can read: upgrade it, or render the job again"
        ) from exc
    return result


def fetch_video(store: Store, job_id: str, folder: Path) -> Path:
    """Copy the video to `folder` and return its path."""
    target = folder / f"{job_id}.mp4"
    store.fetch(read_result(store, job_id).video_key, target)
    return target


def link_result(store: Store, job_id: str, expires_s: int) -> ResultURLs:
    """URLs that hold for so long, or for ever where the store is a folder."""
    result = read_result(store, job_id)
    named = (result.video_key, result.report_key, result.playlist_key, *(piece.key for piece in result.pieces))
    links = {key: store.link(key, expires_s) for key in named if key is not None}
    return ResultURLs(
        video=links[result.video_key],
        report=links[result.report_key],
        playlist=links[result.playlist_key] if result.playlist_key else None,
        pieces=links,
    )
