"""Takes a batch's pictures and videos out of the store, into a folder beside its report.

A store that cannot be opened, does not answer, or lacks something, is told of and no error: the rest of a report does
not need it.
"""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from threading import Thread

from jobs.batch.report.figures import RowReport
from jobs.errors import StoreRefused, StoreUnavailable
from jobs.in_words import say_count
from jobs.store import LONGEST_LINK_S, Store, open_store

THREADS = 8
PICTURES, VIDEOS, RENDERS = "pictures", "videos", "renders"  # folders
PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
PREVIEWS_TRIED = 3  # the latest may be of a lost attempt whose pieces were deleted
LONGEST_NAME_BYTES = 80
PROBE_S = 10.0  # a store that says nothing would be waited for for minutes, with each piece anew

Paths = dict[str, str]  # by job: where something of its row is, in the folder or by a URL


class Copier:
    """Copies out of one store into one folder. What is there already is left as it is: pieces never change."""

    def __init__(self, store: Store | None, folder: Path, silence: str = "") -> None:
        """silence  why the store gives nothing; empty if it answers"""
        self.folder = folder
        self._store, self._silence = store, silence
        self._missing: list[str] = []

    @property
    def is_silent(self) -> bool:
        """Whether the store gives nothing."""
        return bool(self._silence)

    def copy_pictures(self, reports: Sequence[RowReport]) -> Paths:
        """The latest preview of each row."""
        return self._copy_all(reports, self._copy_picture)

    def copy_videos(self, reports: Sequence[RowReport]) -> Paths:
        """The video of each row that has a result."""
        return self._copy_all(reports, lambda report: self._copy_piece(report, report.told.video_key, VIDEOS))

    def copy_renders(self, reports: Sequence[RowReport]) -> Paths:
        """What each such render took."""
        return self._copy_all(reports, lambda report: self._copy_piece(report, report.told.report_key, RENDERS))

    def link_videos(self, reports: Sequence[RowReport]) -> Paths:
        """Its URL. An S3 store's is good for seven days. It is made here, also if the store is silent."""
        return self._link_all(reports, lambda report: report.told.video_key)

    def link_renders(self, reports: Sequence[RowReport]) -> Paths:
        """Likewise, of what the render took."""
        return self._link_all(reports, lambda report: report.told.report_key)

    def notes(self) -> list[str]:
        """What could not be had."""
        told = []
        if self._silence:
            told.append(f"store: {self._silence}; pictures and videos may be missing here")
        if self._missing:
            told.append(f"{say_count(len(self._missing), 'file')} could not be had; the first: {self._missing[0]}")
        return told

    def _link_all(self, reports: Sequence[RowReport], key_of: Callable[[RowReport], str]) -> Paths:
        found: Paths = {}
        for report in reports:
            if self._store is not None and (key := key_of(report)):
                try:
                    found[report.row.job_id] = self._store.link(key, LONGEST_LINK_S)
                except ValueError as exc:
                    self._missing.append(str(exc))
                except StoreUnavailable as exc:  # there is nothing to sign with; to look for it may take a second
                    self._silence = self._silence or str(exc)
                    break
        return found

    def _copy_all(self, reports: Sequence[RowReport], copy: Callable[[RowReport], str]) -> Paths:
        with ThreadPoolExecutor(THREADS, "copies") as threads:
            paths = threads.map(copy, reports)
            return {report.row.job_id: path for report, path in zip(reports, paths, strict=True) if path}

    def _copy_picture(self, report: RowReport) -> str:
        """Its path in the folder, or nothing."""
        reasons: list[str] = []
        for key in report.told.previews[: -PREVIEWS_TRIED - 1 : -1]:
            path = f"{PICTURES}/{name_file(report, key)}"
            if PurePosixPath(path).suffix.lower() in PICTURE_SUFFIXES and self._copy(key, path, reasons):
                return path
        self._missing += reasons[:1]
        return ""

    def _copy_piece(self, report: RowReport, key: str, folder: str) -> str:
        if not key:
            return ""
        path, reasons = f"{folder}/{name_file(report, key)}", list[str]()
        if self._copy(key, path, reasons):
            return path
        self._missing += reasons
        return ""

    def _copy(self, key: str, path: str, reasons: list[str]) -> bool:
        target = self.folder / path
        if target.exists():
            return True
        if self._silence or self._store is None:
            return False
        try:
            self._store.fetch(key, target)
        except (StoreUnavailable, ValueError) as exc:
            # Is only this missing, or would whoever asks for the next wait in vain too?
            self._silence = self._silence or probe(self._store)
            if not self._silence:
                reasons.append(str(exc))
            return False
        return True


def open_copier(store_url: str, folder: Path, *, is_named: bool) -> Copier:
    """With a look at whether the store answers. Raises StoreRefused for a wrong URL, if a person has named it."""
    try:
        store = open_store(store_url)
    except StoreUnavailable as exc:
        if is_named and isinstance(exc, StoreRefused):
            raise
        return Copier(None, folder, str(exc))  # boto3 is not installed, say
    return Copier(store, folder, probe(store))


def probe(store: Store) -> str:
    """Why the store gives nothing; empty if it answers."""
    answers: SimpleQueue[str] = SimpleQueue()
    Thread(target=lambda: answers.put(_ask(store)), name="probe", daemon=True).start()  # it may never return
    try:
        return answers.get(timeout=PROBE_S)
    except Empty:
        return f"{store.url('probe')} has not answered for {PROBE_S:.0f} s: see that the service runs"


def _ask(store: Store) -> str:
    try:
        next(iter(store.scan("probe-")), None)
    except StoreUnavailable as exc:
        return str(exc)
    return ""


def name_file(report: RowReport, key: str) -> str:
    """For a person, and another one for each object: the row's name, the job, and the end of the key."""
    label = _cut(re.sub(r"[^\w.-]+", "_", report.row.label).strip("._-"))
    job = re.sub(r"\W", "", report.row.job_id, flags=re.ASCII)[:8]
    end = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(key.split("/")[-2:]))[-LONGEST_NAME_BYTES:]
    return "-".join(part for part in (label, job, end) if part)


def _cut(name: str) -> str:
    """File systems count bytes."""
    return name.encode()[:LONGEST_NAME_BYTES].decode(errors="ignore")
