"""How long the output of jobs stays in the store: the rules, as a pure `plan` of one job, and what carries them out.

A job is judged by what lies in the store, by its result there, and by its place in Redis:

- queued or claimed: nothing of it goes, ever.
- with a result: what that names stays as long as the result, which goes as a whole when it is old enough; the commit
  marker first, so that a reader sees all of it or nothing. Checkpoints and what was written in vain go earlier.
- dead or failed, with a record: `h3render dead retry` can take it up. Until the record expires or is dropped, what a
  retry goes on from (h3_kept) stays, and the markers that keep attempts apart. The rest is of no use to it.
- any other end, or none that Redis knows of: all goes, once nothing has been written for long enough. That also
  completes a run that was interrupted, since without its marker a result is none.

Somebody may queue a job again while we look at it. So right before anything is removed its place is read once more, and
a job about which anything is different is left to the next run. Whoever comes after that second look loses nothing: a
retry goes on from what is kept, and writes under the prefix of a new attempt. A job that was canceled or forgotten can
only be queued again by hand: its attempt sees that the pieces are gone and begins anew, and it confirms all that its
result names before it commits.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from redis import Redis

from jobs.errors import StoreRefused, StoreUnavailable
from jobs.pieces import KeptPieces
from jobs.request import INPUTS, PICTURE_KEY
from jobs.result import Result, result_key
from jobs.store import ListedObject, Store, check_key

ATTEMPT_MARKER = "attempt.json"  # by which a worker takes an attempt's prefix
PROBE = re.compile(r"probe-[0-9a-f]{32}")  # of Store.check
_LAYOUT = re.compile(rf"(?!{INPUTS}/)[^/]+/(?:result\.json|attempts/[1-9][0-9]*/.+)")
_SCRIPT = Path(__file__).with_suffix(".lua").read_text()
_DELETIONS_AT_ONCE = 16  # requests: not every service has S3's deletion of many, nor one checksum that all take for it
_MOST_DELETIONS = 1000  # after one look at the job's place


class What(StrEnum):
    """What is removed, in a person's words."""

    RESULT = "result"  # the marker and what it names
    CHECKPOINT = "checkpoint"
    PIECE = "piece"
    PICTURE = "picture"  # of a request
    PROBE = "probe"
    UNFINISHED = "unfinished write"
    SPOOL = "spool folder"
    RECORD = "record in Redis"


@dataclass(frozen=True, slots=True)
class Ages:
    """How old it must be."""

    results: timedelta = timedelta(days=30)  # and pictures that no job names, which stay 2 days at least
    pieces: timedelta = timedelta(days=2)  # and whatever else was left behind
    checkpoints: timedelta = timedelta(days=1)  # of a job that has a result

    @property
    def least(self) -> timedelta:
        return min(self.results, self.pieces, self.checkpoints)


DEFAULT_AGES = Ages()


@dataclass(frozen=True, slots=True)
class Deletion:
    """One thing that nobody needs any more."""

    what: What
    name: str  # of an object: its key
    size_bytes: int  # 0 where nobody tells
    reason: str


class State(StrEnum):
    """Where a job is."""

    QUEUED = "queued"  # or nobody can say that it will not run
    CLAIMED = "claimed"
    ENDED = "ended"
    UNKNOWN = "unknown"  # Redis has no record of it


@dataclass(frozen=True, slots=True)
class Place:
    """All that Redis says of a job. Two looks that give the same: nothing has happened between them."""

    state: State
    outcome: str = ""  # how it ended
    ended_at: datetime | None = None
    attempts: str = ""
    kept: KeptPieces | None = field(default_factory=KeptPieces)  # None: something that we cannot read

    @property
    def may_run_again(self) -> bool:
        """Whether somebody can retry the job after its end."""
        return self.state is State.ENDED and self.outcome in ("dead", "failed")

    @property
    def is_open(self) -> bool:
        """Whether nothing of the job may go."""
        return self.state in (State.QUEUED, State.CLAIMED) or (self.may_run_again and self.kept is None)


# --- the rules


def plan(
    job_id: str, objects: Sequence[ListedObject], result: Result | None, place: Place, ages: Ages, now: datetime
) -> list[Deletion]:
    """What of a job may go; its commit marker, if that may, is the first.

    objects  all of the job, by the store's layout
    result   what the marker among them says; None if there is no marker
    """
    marker = next((found for found in objects if found.key == result_key(job_id)), None)
    if place.is_open or (marker is None) != (result is None):
        return []
    unneeded = [found for found in _without_needed(objects, place) if found is not marker]
    if marker is None or result is None:
        return _plan_without_result(unneeded, objects, place, ages, now)
    return _plan_result(marker, result, unneeded, ages, now) + _plan_vain(marker, result, unneeded, ages, now)


def _plan_result(
    marker: ListedObject, result: Result, unneeded: Sequence[ListedObject], ages: Ages, now: datetime
) -> list[Deletion]:
    if now - marker.modified_at <= ages.results:
        return []
    named = names_of(result)
    going = [marker, *(found for found in unneeded if found.key in named)]
    return [_delete(found, What.RESULT, f"older than {say_age(ages.results)}") for found in going]


def _plan_vain(
    marker: ListedObject, result: Result, unneeded: Sequence[ListedObject], ages: Ages, now: datetime
) -> list[Deletion]:
    """What the result does not name."""
    named, age = names_of(result), now - marker.modified_at
    limits = {What.CHECKPOINT: ages.checkpoints, What.PIECE: ages.pieces}
    kinds = ((found, _kind(found.key)) for found in unneeded if found.key not in named)
    return [
        _delete(found, kind, f"its job has a result since more than {say_age(limits[kind])}, which does not name it")
        for found, kind in kinds
        if age > limits[kind]
    ]


def _plan_without_result(
    unneeded: Sequence[ListedObject], objects: Sequence[ListedObject], place: Place, ages: Ages, now: datetime
) -> list[Deletion]:
    written = max((found.modified_at for found in objects), default=now)
    if now - max(written, place.ended_at or written) <= ages.pieces:
        return []
    how = "is unknown to Redis" if place.state is State.UNKNOWN else f"is {place.outcome}"
    why = "a retry would not use it" if place.may_run_again else "it has no result"
    reason = f"its job {how} and silent for more than {say_age(ages.pieces)}: {why}"
    return [_delete(found, _kind(found.key), reason) for found in unneeded]


def names_of(result: Result) -> set[str]:
    """The keys of all that belongs to it."""
    fixed = (result.video_key, result.report_key, result.playlist_key)
    return {key for key in fixed if key is not None} | {piece.key for piece in result.pieces}


def job_of(key: str) -> str:
    """The job that an object is of; empty if its key is not of our layout."""
    try:
        check_key(key)
    except ValueError:
        return ""
    return key.partition("/")[0] if _LAYOUT.fullmatch(key) else ""


def _without_needed(objects: Iterable[ListedObject], place: Place) -> Iterable[ListedObject]:
    """Without what a retry of the job would need."""
    if not place.may_run_again or place.kept is None:
        return objects
    needed = {piece.key for piece in place.kept.pieces()}
    return [found for found in objects if found.key not in needed and posixpath.basename(found.key) != ATTEMPT_MARKER]


def _kind(key: str) -> What:
    return What.CHECKPOINT if posixpath.basename(key).startswith("checkpoint-") else What.PIECE


def _delete(found: ListedObject, what: What, reason: str) -> Deletion:
    return Deletion(what, found.key, found.size_bytes, reason)


def say_age(age: timedelta) -> str:
    """In a person's words."""
    return f"{age.days} day{'' if age.days == 1 else 's'}"


# --- what Redis says


class RetentionScript:
    """Calls retention.lua."""

    def __init__(self, redis: Redis) -> None:
        self._script = redis.register_script(_SCRIPT)

    def look(self, job_id: str) -> Place:
        state, *rest = (part.decode("utf-8", "replace") for part in self.call("look", job_id))
        if state != State.ENDED:
            return Place(State(state))
        outcome, ended_at, attempts, kept = rest
        return Place(State.ENDED, outcome, _read_time(ended_at), attempts, _read_kept(kept))

    def call(self, command: str, *arguments: str | bytes) -> Any:
        return self._script(args=[command, *arguments])


def _read_time(text: str) -> datetime | None:
    """RQ's form of a time. None for what is none: then the objects' own times decide."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _read_kept(text: str) -> KeptPieces | None:
    try:
        return KeptPieces.model_validate_json(text) if text else KeptPieces()
    except ValidationError:
        return None


# --- carrying it out


@dataclass(frozen=True, slots=True)
class Finding:
    """What may go together, or why something is left alone."""

    deletions: Sequence[Deletion] = ()
    remove: Callable[[], bool] = lambda: True  # False: something has changed since, and the next run is to look again
    left_alone: str = ""


class JobCollector:
    """Looks at a store job by job, and removes what is found. Both may raise StoreUnavailable and RedisError."""

    def __init__(self, store: Store, script: RetentionScript, ages: Ages, now: datetime) -> None:
        self._store, self._script, self._ages, self._now = store, script, ages, now

    def look(self) -> Iterator[Finding]:
        """What may go of each job. Never holds more than one job's keys."""
        foreign = 0
        for _, together in groupby(self._store.scan(), lambda found: found.key.partition("/")[0]):
            objects = []
            for found in together:
                if job_of(found.key):
                    objects.append(found)
                else:
                    foreign += not (PROBE.fullmatch(found.key) or PICTURE_KEY.fullmatch(found.key))
            if objects:
                yield from self._look_at(job_of(objects[0].key), objects)
        if foreign:
            yield Finding(left_alone=f"{foreign} of the store's objects, which belong to no job")

    def _look_at(self, job_id: str, objects: Sequence[ListedObject]) -> Iterator[Finding]:
        if self._now - min(found.modified_at for found in objects) <= self._ages.least:
            return  # spares two questions
        place = self._script.look(job_id)
        try:
            result = self._read_result(job_id, objects)
        except StoreUnavailable as exc:
            self._store.stat(result_key(job_id))  # raises if it is the store that cannot be read
            yield Finding(left_alone=f"job {job_id}: {exc}")
            return
        if place.may_run_again and place.kept is None:
            yield Finding(left_alone=f"job {job_id}: what it has kept for a retry is nothing that we can read")
        if deletions := plan(job_id, objects, result, place, self._ages, self._now):
            yield Finding(deletions, partial(self._remove, job_id, place, deletions, has_result=result is not None))

    def _read_result(self, job_id: str, objects: Iterable[ListedObject]) -> Result | None:
        key = result_key(job_id)
        if all(found.key != key for found in objects):
            return None
        try:
            result = Result.model_validate_json(self._store.get(key))
        except ValidationError as exc:
            raise StoreRefused(f"{self._store.url(key)} is no result that we can read") from exc
        if result.job_id != job_id:
            raise StoreRefused(f"{self._store.url(key)} is the result of another job, {result.job_id}")
        return result

    def _remove(self, job_id: str, place: Place, deletions: Sequence[Deletion], *, has_result: bool) -> bool:
        for start in range(0, len(deletions), _MOST_DELETIONS):
            if self._script.look(job_id) != place:
                return False
            if not has_result and self._store.stat(result_key(job_id)) is not None:
                return False
            self._delete([deletion.name for deletion in deletions[start : start + _MOST_DELETIONS]])
        return True

    def _delete(self, keys: Sequence[str]) -> None:
        first, *rest = keys
        self._store.delete(first)  # a commit marker is gone before anything that it names
        with ThreadPoolExecutor(_DELETIONS_AT_ONCE) as threads:
            list(threads.map(self._store.delete, rest))
