"""What the events of a batch's jobs tell of them: what they render, how attempts were lost, what is to be seen."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from jobs import events
from jobs.batch.chunks import ROWS_A_CALL, in_chunks
from jobs.batch.record import BatchRow
from jobs.connection import redis_errors
from jobs.events import Entry, Event, Queued, parse_entries, parse_queued, read_events, read_first, read_latest
from jobs.lease import Charge
from jobs.operation import Call, pipeline
from jobs.request import ResolvedRequest


@dataclass(slots=True)
class Told:
    """One job, as far as its events go."""

    request: ResolvedRequest | None = None  # None if that is no longer there, or cannot be read
    queue: str = ""
    lost: Counter[Charge] = field(default_factory=Counter)  # attempts that ended by no doing of the job
    reason: str = ""  # why there is no result
    previews: list[str] = field(default_factory=list)  # keys, the latest last
    video_key: str = ""  # of the result
    report_key: str = ""  # likewise: what its render took
    store_url: str = ""  # where its worker has put it

    def take(self, event: Event) -> None:
        match event:
            case events.Queued(queue=queue, request=request):
                self.queue, self.request = queue, request
            case events.PreviewReady(key=key):
                self.previews.append(key)
            case events.AttemptLost(attempt=attempt, reason=reason, charge=charge):
                self.lost[Charge(charge)] += 1
                self.reason = f"attempt {attempt} was lost: {reason}"
            case events.Dead(losses=losses):
                # The last loss is told by this event only. It is what a person looks for first.
                self.lost[Charge(losses[-1].kind) if losses else Charge.FATAL] += 1
                told = (f"attempt {loss.attempt} on {loss.worker}: {loss.reason}" for loss in reversed(losses))
                self.reason = "\n".join(told)
            case events.Failed(reason=reason):
                self.reason = reason
            case events.Canceled():
                self.reason = "canceled"
            case events.Retried():
                self.reason = ""
            case events.Finished():
                self.reason, self.store_url = "", event.store_url
                self.video_key, self.report_key = event.video_key, event.report_key


def gather(told: Iterable[Event]) -> Told:
    """All of one job's events, or its last ones."""
    gathered = Told()
    for event in told:
        gathered.take(event)
    return gathered


# --- many jobs at a time


def ask_told(row: BatchRow) -> Call:
    """`parse_told` reads the answer."""
    return read_events(row.job_id)


def parse_told(entries: list[Entry]) -> Told:
    return gather(parse_entries(entries))


def read_last(redis: Redis, rows: Sequence[BatchRow]) -> list[Told]:
    """What the last event of each tells. Raises RedisUnavailable."""
    return [parse_told(entries) for entries in _ask_each(redis, rows, lambda row: read_latest(row.job_id, 1))]


def read_requests(redis: Redis, rows: Sequence[BatchRow]) -> list[Queued | None]:
    """How each was queued; None if that can no longer be read. Raises RedisUnavailable."""
    return [parse_queued(first) for first in _ask_each(redis, rows, lambda row: read_first(row.job_id))]


def _ask_each(redis: Redis, rows: Sequence[BatchRow], ask: Callable[[BatchRow], Call]) -> Iterator[Any]:
    for chunk in in_chunks(rows, ROWS_A_CALL):
        with redis_errors():
            answers = pipeline(*map(ask, chunk))(redis)
        yield from answers
