"""How far a batch is: counts, rate, time left and cost, by arithmetic alone. Times are seconds since 1970."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

from jobs.in_words import say_count

RATE_WINDOW_S = 3600.0
RATE_ENDS = 5  # a rate is told of at least so many, if there are so many
ENDS_AVERAGED = 20  # of late, for what a row takes


class RowState(StrEnum):
    """Where a row of a batch is: its job's state, or that it has none."""

    FINISHED = "finished"  # its result is committed
    FAILED = "failed"  # it cannot be done; the reason says what to mend
    DEAD = "dead"  # it has used up its attempts
    CANCELED = "canceled"
    RUNNING = "running"
    QUEUED = "queued"  # whether or not some worker can take it
    NOT_QUEUED = "not_queued"  # its submit was broken off; again, it queues the row
    UNKNOWN = "unknown"  # its job has no record any more

    @property
    def in_words(self) -> str:
        return self.replace("_", " ")

    @property
    def is_lost(self) -> bool:
        """It has ended without a result, and all its attempts can be given back."""
        return self in (RowState.FAILED, RowState.DEAD)

    @property
    def is_left(self) -> bool:
        """It is still to end, by itself."""
        return self in (RowState.RUNNING, RowState.QUEUED)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows are where. Each is counted once."""

    finished: int = 0
    failed: int = 0
    dead: int = 0
    canceled: int = 0
    running: int = 0
    queued: int = 0
    not_queued: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, states: Iterable[RowState]) -> Self:
        return cls(**Counter(map(str, states)))

    @property
    def rows(self) -> int:
        return sum(asdict(self).values())

    @property
    def left(self) -> int:
        """Rows that are still to end."""
        return self.running + self.queued

    @property
    def without_result(self) -> int:
        """Rows of which no more will come by itself."""
        return self.rows - self.finished - self.left

    def describe(self) -> str:
        """Those that are not zero; finished ones always."""
        counts = {RowState(name): count for name, count in asdict(self).items()}
        told = (f"{count:,} {state.in_words}" for state, count in counts.items() if count or state == "finished")
        return f"{say_count(self.rows, 'row')}: {', '.join(told)}"


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which machines worked."""

    began_at: float
    ended_at: float

    def after(self, at: float) -> float:
        """Seconds of it that are later."""
        return max(0.0, self.ended_at - max(self.began_at, at))


@dataclass(frozen=True, slots=True)
class RowTimes:
    """What a row's record says of its times."""

    state: RowState
    attempts: int = 0
    ended_busy_s: float = 0.0  # of all attempts that have ended
    claimed_at: float | None = None  # by the attempt that runs
    leased_until: float | None = None  # by it: if its worker is dead, nobody works on the row any more
    queued_at: float | None = None
    ended_at: float | None = None

    def busy_s(self, now: float) -> float:
        """How long machines have worked on it, in all attempts."""
        return self.ended_busy_s + self._running_s(now)

    def find_span(self, now: float) -> Span | None:
        """When machines worked on it, if each attempt followed the one before without a pause.

        None if there was none, or if it waits for its next: when its last one was is not recorded.
        """
        until = self.ended_at if self.claimed_at is None else self.claimed_at + self._running_s(now)
        return None if not self.attempts or until is None else Span(until - self.busy_s(now), until)

    def _running_s(self, now: float) -> float:
        if self.claimed_at is None:
            return 0.0
        until = now if self.leased_until is None else min(now, self.leased_until)
        return max(0.0, until - self.claimed_at)


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch at one moment."""

    counts: Counts
    busy_s: float  # of all attempts, also those that were lost
    rate_per_hour: float | None  # rows finished; None before the first
    left_s: float | None  # None if there is no telling
    cost: float | None  # None without a price


def measure(rows: Sequence[RowTimes], now: float, price_per_hour: float | None = None) -> Progress:
    """Where a batch stands at a time."""
    counts = Counts.of(row.state for row in rows)
    busy_s = sum(row.busy_s(now) for row in rows)
    finished = sorted((row for row in rows if row.state is RowState.FINISHED), key=lambda row: row.ended_at or 0.0)
    spans = merge(span for row in rows if (span := row.find_span(now)) is not None)
    rate = rate_per_hour(spans, [row.ended_at for row in finished if row.ended_at is not None])
    running = [row.busy_s(now) for row in rows if row.state is RowState.RUNNING]
    left_s = time_left_s(counts.left, running, [row.ended_busy_s for row in finished])
    return Progress(counts, busy_s, rate, left_s, find_cost(busy_s, price_per_hour))


def merge(spans: Iterable[Span]) -> list[Span]:
    """When any machine worked: in order, none touching the next."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.began_at):
        if merged and span.began_at <= merged[-1].ended_at:
            merged[-1] = Span(merged[-1].began_at, max(merged[-1].ended_at, span.ended_at))
        else:
            merged.append(span)
    return merged


def rate_per_hour(worked: Sequence[Span], finished_at: Iterable[float]) -> float | None:
    """Rows finished per hour of work, in the last such hour, or since longer ago if that saw fewer than five.

    Hours in which no machine worked on the batch do not count: after an idle night, or a week after the end, it is
    the same as before. None before the first has finished.

    worked  as `merge` gives it
    """
    ends = sorted(finished_at)
    if not ends or not worked:
        return None
    since = _go_back(worked, RATE_WINDOW_S)
    since = min(since, ends[-RATE_ENDS - 1]) if len(ends) > RATE_ENDS else worked[0].began_at
    worked_s = sum(span.after(since) for span in worked)
    return sum(end > since for end in ends) * 3600 / worked_s if worked_s else None


def _go_back(worked: Sequence[Span], seconds: float) -> float:
    """The time since which machines have worked for so long; the first of all if they have not."""
    for span in reversed(worked):
        if (length_s := span.after(span.began_at)) >= seconds:
            return span.ended_at - seconds
        seconds -= length_s
    return worked[0].began_at


def time_left_s(rows_left: int, running_busy_s: Sequence[float], finished_busy_s: Sequence[float]) -> float | None:
    """Until the last row has ended, if the rest takes what the latest rows took, on as many machines as run rows now.

    None if there is no telling: none has finished, or none runs.

    running_busy_s   of each row that runs, so far
    finished_busy_s  of each that has finished, the latest last
    """
    if rows_left == 0:
        return 0.0
    latest = finished_busy_s[-ENDS_AVERAGED:]
    if not latest or not running_busy_s:
        return None
    mean_s = sum(latest) / len(latest)
    return (rows_left * mean_s - sum(min(mean_s, done_s) for done_s in running_busy_s)) / len(running_busy_s)


def find_cost(busy_s: float, price_per_hour: float | None) -> float | None:
    """Of the hours that worker machines were busy with the batch; idle ones are not in it."""
    return None if price_per_hour is None else busy_s / 3600 * price_per_hour
