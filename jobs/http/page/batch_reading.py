"""What the page asks of Redis of batches. They are read by a blocking client, in a thread, and not at every look."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from redis import Redis

from jobs.batch.history import read_last, read_requests
from jobs.batch.progress import Counts
from jobs.batch.record import Batch, list_batches
from jobs.batch.states import RowStatus, read_statuses
from jobs.batch.watcher import BatchWatcher, Snapshot
from jobs.errors import JobNotFound, RedisUnavailable
from jobs.http.page.farm_views import (
    BatchCell,
    BatchPage,
    BatchTile,
    choose_rows,
    list_chips,
    say_busy,
    say_counts,
    say_pace,
    show_batch,
    show_row,
)

MOST_BATCHES = 12
ROWS_STEP = 48
SHORTEST_REST_S = 1.0
RESTS_A_LOOK = 9.0  # as long as it took: ten thousand rows are no burden, however many watch
KEPT = 50  # looks that are remembered

Value = TypeVar("Value")


@dataclass(slots=True)
class Remembered(Generic[Value]):
    """What was read lately, by name, so that many who look at the same cause one look at Redis, or one failure."""

    _kept: dict[str, tuple[float, Value | RedisUnavailable]] = field(default_factory=dict)  # until when
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, name: str, read: Callable[[], Value]) -> Value:
        """Raises what `read` raises."""
        with self._lock:
            until, value = self._kept.get(name, (0.0, None))
            if value is None or time.monotonic() >= until:
                value = self._read(name, read)
        if isinstance(value, RedisUnavailable):
            raise value.with_traceback(None)  # which would grow with each who is told
        return value

    def _read(self, name: str, read: Callable[[], Value]) -> Value | RedisUnavailable:
        began = time.monotonic()
        value, rests = _try(read)
        now = time.monotonic()
        self._kept.pop(name, None)
        self._kept[name] = (now + max(SHORTEST_REST_S, rests * (now - began)), value)
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return value

    def forget(self) -> None:
        with self._lock:
            self._kept.clear()


def _try(read: Callable[[], Value]) -> tuple[Value | RedisUnavailable, float]:
    """And for how many times as long as it took Redis is left in peace after that."""
    try:
        return read(), RESTS_A_LOOK
    except RedisUnavailable as exc:
        return exc, 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """One batch at one moment."""

    statuses: Sequence[RowStatus]
    snapshot: Snapshot


class BatchReader:
    """Reads batches for all visitors of the page. Methods raise RedisUnavailable."""

    def __init__(self, connect: Callable[[], Redis]) -> None:
        """connect  a new client, which is closed after each look"""
        self._connect = connect
        self._tiles: Remembered[tuple[BatchTile, ...]] = Remembered()
        self._looks: Remembered[Look] = Remembered()
        self._pages: Remembered[BatchPage] = Remembered()

    def list(self) -> tuple[BatchTile, ...]:
        """The latest."""
        return self._tiles.get("", lambda: self.ask(_list))

    def read(self, name: str, chosen: str, shown: int) -> BatchPage:
        """Its first so many rows of a state, or of all. Raises BatchInvalid and JobNotFound."""
        look = self._looks.get(name, lambda: self.ask(lambda redis: _look(redis, name)))
        matching = choose_rows(look.statuses, chosen)

        def show(redis: Redis) -> BatchPage:
            page = _show(look.snapshot, chosen, len(matching), shown)
            return replace(page, cells=_show_cells(redis, matching[:shown]))

        return self._pages.get(f"{name} {chosen} {shown}", lambda: self.ask(show))

    def change(self, change: Callable[[Redis], object]) -> None:
        """Do something to them, and forget what was read before."""
        self.ask(change)
        for remembered in (self._tiles, self._looks, self._pages):
            remembered.forget()

    def ask(self, question: Callable[[Redis], Value]) -> Value:
        with self._connect() as redis:
            return question(redis)


def _list(redis: Redis) -> tuple[BatchTile, ...]:
    latest = list_batches(redis)[: -MOST_BATCHES - 1 : -1]
    return tuple(show_batch(entry.name, entry.submitted_at, _count(redis, entry.name)) for entry in latest)


def _count(redis: Redis, name: str) -> Counts:
    return Counts.of(status.state for status in read_statuses(redis, Batch(redis, name).peek()))


def _look(redis: Redis, name: str) -> Look:
    batch = Batch(redis, name)
    rows = batch.peek()
    if not rows:
        raise JobNotFound(f"no batch {name}: records stay 60 days after the last command that reads them")
    return Look(read_statuses(redis, rows), BatchWatcher(redis, batch, None).look())


def _show(snapshot: Snapshot, chosen: str, matching: int, shown: int) -> BatchPage:
    progress = snapshot.progress
    counts = progress.counts
    ends_at = None
    if counts.left and progress.left_s is not None:
        ends_at = datetime.fromtimestamp(round((time.time() + progress.left_s) / 10) * 10, UTC)
    return BatchPage(
        name=snapshot.name,
        ended=counts.rows - counts.left - counts.not_queued,
        rows=counts.rows,
        counts=say_counts(counts),
        rate=say_pace(progress),
        ends_at=ends_at,
        busy=say_busy(progress),
        waiting_for=snapshot.waiting_for,
        chips=list_chips(counts, chosen),
        cells=(),
        matching=matching,
        can_cancel=counts.left > 0,
        can_retry=counts.failed + counts.dead > 0,
        more=shown + ROWS_STEP if matching > shown else 0,
    )


def _show_cells(redis: Redis, statuses: Sequence[RowStatus]) -> tuple[BatchCell, ...]:
    rows = [status.row for status in statuses]
    lost = [status.row for status in statuses if status.state.is_lost]
    reasons = {row.job_id: told.reason for row, told in zip(lost, read_last(redis, lost), strict=True)}
    requests = read_requests(redis, rows)
    return tuple(
        show_row(status, queued.request if queued else None, reasons.get(status.row.job_id, ""))
        for status, queued in zip(statuses, requests, strict=True)
    )
