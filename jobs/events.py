"""What is told about a job, from queued to its end, and the log that tells it: one Redis stream per job.

Events are for people and programs that watch. The record of what was made is the result in the store.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from redis import Redis

from jobs.request import ResolvedRequest

EVENTS_KEY = "h3:events:{job_id}"
RETENTION_S = 30 * 24 * 3600
_LONGEST_BLOCK_S = 1.0


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1

    @property
    def is_last(self) -> bool:
        """Nothing follows this event."""
        return False


class Queued(_Event):
    """The job waits in a queue. Carries what will be rendered, with everything snapped and drawn."""

    kind: Literal["queued"] = "queued"
    queue: str
    request: ResolvedRequest


class Started(_Event):
    """A worker began an attempt."""

    kind: Literal["started"] = "started"
    attempt: int
    worker: str


class TextEncoded(_Event):
    kind: Literal["text_encoded"] = "text_encoded"
    tokens: int
    seconds: float


class StepDone(_Event):
    kind: Literal["step_done"] = "step_done"
    step: int  # 1-based
    steps: int
    sigma: float
    seconds: float


class PreviewReady(_Event):
    """A picture of the unfinished clip is in the store."""

    kind: Literal["preview_ready"] = "preview_ready"
    step: int
    key: str


class CheckpointSaved(_Event):
    """The attempt can be taken up again after this step."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    key: str


class StreamOpened(_Event):
    """The decode begins; the playlist will be at `playlist_key` with its first segment."""

    kind: Literal["stream_opened"] = "stream_opened"
    segments: int
    playlist_key: str


class SegmentReady(_Event):
    """One more segment of the playlist can be played."""

    kind: Literal["segment_ready"] = "segment_ready"
    index: int  # 0-based
    key: str
    duration_s: float
    playlist_key: str  # of this attempt: one that goes on with an earlier one's stream has a playlist of its own


class Finished(_Event):
    """The result is committed."""

    kind: Literal["finished"] = "finished"
    attempt: int
    store_url: str
    result_key: str
    video_key: str
    report_key: str
    playlist_key: str | None

    @property
    def is_last(self) -> bool:
        return True


class AttemptLost(_Event):
    """The attempt is gone, the job is not: it waits at the head of its queue."""

    kind: Literal["attempt_lost"] = "attempt_lost"
    attempt: int
    reason: str
    charge: Literal["fatal", "interrupted", "drained"]


class Failed(_Event):
    """The job ended without a result."""

    kind: Literal["failed"] = "failed"
    attempt: int
    cause: Literal["request", "store", "deadline"] = "request"  # what a person has to mend
    reason: str

    @property
    def is_last(self) -> bool:
        return True


class Canceled(_Event):
    """The job is no longer wanted. What its attempts have published stays for a while."""

    kind: Literal["canceled"] = "canceled"
    attempt: int  # 0: none was begun

    @property
    def is_last(self) -> bool:
        return True


class Loss(BaseModel):
    """How one attempt ended without a result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int
    worker: str
    kind: Literal["fatal", "interrupted"]
    reason: str


class Dead(_Event):
    """The job has used up its attempts, and waits for a person to retry or to drop it."""

    kind: Literal["dead"] = "dead"
    attempt: int
    losses: list[Loss]

    @property
    def is_last(self) -> bool:
        return True


class Retried(_Event):
    """A person has given a dead job its attempts back."""

    kind: Literal["retried"] = "retried"


class Unknown(_Event):
    """News that only a later version of this program can read."""

    kind: Literal["unknown"] = "unknown"
    told: str  # kind and version


Event = Annotated[
    Queued
    | Started
    | TextEncoded
    | StepDone
    | PreviewReady
    | CheckpointSaved
    | StreamOpened
    | SegmentReady
    | Finished
    | AttemptLost
    | Failed
    | Canceled
    | Dead
    | Retried
    | Unknown,
    Field(discriminator="kind"),
]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class EventLog:
    """Appends and reads the events of jobs."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def append(self, job_id: str, event: Event) -> None:
        key = EVENTS_KEY.format(job_id=job_id)
        with self._redis.pipeline() as pipeline:
            pipeline.xadd(key, {"event": event.model_dump_json()})
            pipeline.expire(key, RETENTION_S)
            pipeline.execute()

    def read(self, job_id: str) -> list[Event]:
        """What has been told so far."""
        entries = cast(list[_Entry], self._redis.xrange(EVENTS_KEY.format(job_id=job_id)))
        return [_decode(fields) for _, fields in entries]

    def follow(
        self, job_id: str, *, timeout_s: float | None = None, is_over: Callable[[], bool] = lambda: False
    ) -> Iterator[Event]:
        """Every event from the first, then live, up to the last one.

        Asks `is_over` whenever nothing new came for a second; when it says so, nothing more is waited for. Raises
        TimeoutError after `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        after, over = b"0", False
        while True:
            entries = self._await(job_id, after, 0.0 if over else _time_left(job_id, deadline))
            if over and not entries:
                return
            over = not entries and is_over()
            for event_id, fields in entries:
                after = event_id
                yield (event := _decode(fields))
                if event.is_last and event_id == entries[-1][0]:  # else somebody has retried a dead job
                    return

    def _await(self, job_id: str, after: bytes, block_s: float) -> list["_Entry"]:
        """Entries after an id; waits up to `block_s` for the first."""
        key = EVENTS_KEY.format(job_id=job_id)
        replies = self._redis.xread({key: after}, block=max(1, int(block_s * 1000)))
        return [entry for _, entries in cast(list[tuple[bytes, list[_Entry]]], replies) for entry in entries]


_Entry = tuple[bytes, dict[bytes, bytes]]  # id and fields


def _decode(fields: dict[bytes, bytes]) -> Event:
    """Never fails: whoever can write to Redis, and any later version of this program, may have written it."""
    text = fields.get(b"event", b"")
    try:
        return _EVENT.validate_json(text)
    except ValidationError:
        return Unknown(told=_name(text))


def _name(text: bytes) -> str:
    try:
        told = json.loads(text)
        return f"{str(told['kind'])[:100]!a}, version {str(told.get('version', 1))[:100]}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "nothing that can be read"


def _time_left(job_id: str, deadline: float | None) -> float:
    if deadline is None:
        return _LONGEST_BLOCK_S
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"job {job_id} did not end in time; `h3render status {job_id}` tells where it stands")
    return min(left, _LONGEST_BLOCK_S)
