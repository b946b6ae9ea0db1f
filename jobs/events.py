"""What is told about a job, from queued to its end, and how it is read: a Redis stream per job, which lease.lua writes.

Events are for people and programs that watch. The record of what was made is the result in the store.
"""

import json
import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from jobs.errors import EventIdInvalid
from jobs.operation import Call, Operation
from jobs.request import ResolvedRequest

EVENTS_KEY = "h3:events:{job_id}"
_LONGEST_BLOCK_S = 1.0


# Bounds that no render comes near: whoever can write to Redis may have written anything.
Number = Annotated[int, Field(ge=0, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class _Event(BaseModel):
    # What a later version says besides is passed over: an end that cannot be read would be no end.
    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    id: str = Field("", exclude=True)  # in the log of its job, in ascending order; empty before it is told

    @property
    def at(self) -> datetime | None:
        """When it was told, by the server's clock; None if its id tells of no time."""
        try:
            return datetime.fromtimestamp(int(self.id.partition("-")[0]) / 1000, UTC)
        except (ValueError, OverflowError):  # no id yet, or one that somebody has made up
            return None

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
    step: Number  # 1-based
    steps: Number
    sigma: float
    seconds: Seconds


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
    segments: Number
    playlist_key: str


class SegmentReady(_Event):
    """One more segment of the playlist can be played."""

    kind: Literal["segment_ready"] = "segment_ready"
    index: Number  # 0-based
    key: str
    duration_s: Seconds
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


FIRST = "0"  # before the first event
Entry = tuple[bytes, dict[bytes, bytes]]  # of a log: id and fields
_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?", re.ASCII)
_LARGEST = 2**64 - 2  # of each part: Redis is asked for what comes after


def check_event_id(event_id: str) -> str:
    """Raises EventIdInvalid for what is no id of an event."""
    if not _ID.fullmatch(event_id) or any(int(part) > _LARGEST for part in event_id.split("-")):
        raise EventIdInvalid(f"event id {event_id[:100]!r} is not like 1764512345678-0: give the `id` of an event")
    return event_id


def read_events(job_id: str, since: str = FIRST) -> Call:
    """What has been told after an event; `parse_entries` makes events of the answer."""
    key, after = EVENTS_KEY.format(job_id=job_id), f"({check_event_id(since)}"
    return lambda redis: redis.xrange(key, after)


def read_first(job_id: str) -> Call:
    """The first event, which tells what is rendered: `parse_queued` reads the answer."""
    key = EVENTS_KEY.format(job_id=job_id)
    return lambda redis: redis.xrange(key, count=1)


def parse_queued(first: list[Entry]) -> Queued | None:
    """How a job was queued; None if that is no longer there, or cannot be read."""
    return next((event for event in parse_entries(first) if isinstance(event, Queued)), None)


def read_latest(job_id: str, most: int) -> Call:
    """The latest events, the last one first."""
    key = EVENTS_KEY.format(job_id=job_id)
    return lambda redis: redis.xrevrange(key, count=most)


def parse_entries(entries: list[Entry]) -> list[Event]:
    return [_decode(entry_id.decode(), fields) for entry_id, fields in entries]


class Reading:
    """Where a reader of a job's events is: what to ask next, and what of the answers is news.

    Over when the last event was read; or, once `has_ended` was said, when nothing more is there.
    """

    def __init__(self, job_id: str, since: str | None, timeout_s: float | None) -> None:
        self.is_over = False
        self.job_id = job_id
        self._after = FIRST if since is None else check_event_id(since)
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._has_ended = False
        self._waits = False  # what is there is read before anything is waited for

    def ask(self) -> Operation[Any]:
        """Wait about a second for news, or read what is there. Raises TimeoutError when the reader's time is up."""
        block_ms = max(1, int(_time_left(self.job_id, self._deadline) * 1000)) if self._waits else 1
        streams = {EVENTS_KEY.format(job_id=self.job_id): self._after}
        return (yield lambda redis: redis.xread(streams, block=block_ms))

    def take(self, replies: Any) -> list[Event]:
        """The news in an answer."""
        if isinstance(replies, dict):  # RESP3
            pages = [page for pages in replies.values() for page in pages]
        else:
            pages = [page for _, page in replies or ()]
        told = parse_entries([entry for page in pages for entry in page])
        if told:
            self._after = told[-1].id
            self.is_over = told[-1].is_last  # else somebody has retried a dead job
        elif self._has_ended:
            self.is_over = True
        self._has_ended, self._waits = False, True
        return told

    def note_end(self) -> None:
        """The job has ended: what is not there by now will not come."""
        self._has_ended, self._waits = True, False


def _decode(event_id: str, fields: dict[bytes, bytes]) -> Event:
    """Never fails: whoever can write to Redis, and any later version of this program, may have written it."""
    text = fields.get(b"event", b"")
    try:
        event = _EVENT.validate_json(text)
    except ValidationError:
        event = Unknown(told=_name(text))
    return event.model_copy(update={"id": event_id})


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
