"""Looks at a batch again and again until all its rows have ended. Knows no screen.

Rows for which nothing more can come are not asked for again, and after each look it rests nine times as long as that
took: with ten thousand rows it is no burden to a Redis that workers live on.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from redis import Redis

from jobs.batch.history import read_last, read_requests
from jobs.batch.progress import Progress, RowState, measure
from jobs.batch.record import Batch, BatchRow
from jobs.batch.states import RowStatus, read_statuses
from jobs.connection import redis_errors
from jobs.events import Queued
from jobs.in_words import say_count
from jobs.lease import PAUSED_KEY
from jobs.request import ResolvedRequest
from jobs.workers import WorkerRecord, explain_waiting, read_workers, server_time

SHORTEST_REST_S = 1.0
RESTS_A_LOOK = 9.0  # as long as it took
FAILURES_SHOWN = 5

# All that `Offer.missing` looks at of a request.
LOOKED_AT = ("version", "mode", "precision", "attention", "width", "height", "frames")
SETTLED = (RowState.FINISHED, RowState.CANCELED)  # for good: what failed or is dead may be retried


@dataclass(frozen=True, slots=True)
class Need:
    """What rows wait for: many have the same."""

    queue: str
    request: ResolvedRequest  # without what no worker looks at

    @classmethod
    def of(cls, queued: Queued) -> "Need":
        looked_at = {name: getattr(queued.request, name) for name in LOOKED_AT}
        return cls(queued.queue, ResolvedRequest(prompt="any", seed=0, **looked_at))


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A row that a worker has."""

    label: str
    job_id: str
    attempt: int
    worker: str
    phase: str = ""  # empty if the worker has not told yet
    step: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row without a result, and why."""

    label: str
    job_id: str
    state: RowState
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A batch as it is shown."""

    name: str
    progress: Progress
    running: tuple[RunningRow, ...]
    failures: tuple[FailedRow, ...]  # the latest, the last one first
    waiting_for: str  # why no worker will take some of the waiting rows; empty if they only wait their turn

    @property
    def news(self) -> tuple[object, ...]:
        """What is worth a line when it changes."""
        return self.progress.counts, self.waiting_for

    def to_dict(self) -> dict[str, object]:
        told = asdict(self)
        progress = told.pop("progress")
        return {"batch": told.pop("name"), "rows": self.progress.counts.rows, **progress, **told}


class BatchWatcher:
    """Looks at one batch."""

    def __init__(self, redis: Redis, batch: Batch, price_per_hour: float | None) -> None:
        """Raises JobNotFound for a batch that nobody knows."""
        self._redis, self._batch, self._price = redis, batch, price_per_hour
        self._rows: Sequence[BatchRow] = batch.rows()
        self._settled: dict[str, RowStatus] = {}  # by job
        self._needs: dict[str, Need] = {}  # by job, of those that wait
        self._kinds: dict[Need, Need] = {}  # each once: thousands of rows have the same
        self._reasons: dict[tuple[float, str], str] = {}  # by end of a job: one that is retried has another

    def follow(self) -> Iterator[Snapshot]:
        """A snapshot at most every second, up to the one in which all rows have ended."""
        while True:
            began = time.monotonic()
            snapshot = self.look()
            yield snapshot
            if not snapshot.progress.counts.left:
                return
            time.sleep(max(SHORTEST_REST_S, RESTS_A_LOOK * (time.monotonic() - began)))

    def look(self) -> Snapshot:
        """Raises RedisUnavailable."""
        self._renew_rows()
        found = read_statuses(self._redis, [row for row in self._rows if row.job_id not in self._settled])
        statuses = [*self._settled.values(), *found]
        self._settled |= {status.row.job_id: status for status in found if status.state in SETTLED}
        with redis_errors():
            now, workers = server_time(self._redis), read_workers(self._redis)
        return Snapshot(
            self._batch.name,
            measure([status.times for status in statuses], now, self._price),
            tuple(_running(found, workers)),
            tuple(self._failures(found)),
            self._explain_waiting([status.row for status in found if status.state is RowState.QUEUED], workers),
        )

    def _renew_rows(self) -> None:
        """A submit may be under way, or a later one have added some."""
        if len(self._rows) != self._batch.count() or not all(row.job_id for row in self._rows):
            self._rows = self._batch.rows()

    def _failures(self, found: Sequence[RowStatus]) -> Iterator[FailedRow]:
        failed = sorted((status for status in found if status.state.is_lost), key=_end)
        latest = failed[: -FAILURES_SHOWN - 1 : -1]
        new = [status for status in latest if _end(status) not in self._reasons]
        for status, told in zip(new, read_last(self._redis, [status.row for status in new]), strict=True):
            self._reasons[_end(status)] = told.reason
        for status in latest:
            yield FailedRow(status.row.label, status.row.job_id, status.state, self._reasons[_end(status)])

    # --- what the waiting rows wait for

    def _explain_waiting(self, waiting: Sequence[BatchRow], workers: Sequence[WorkerRecord]) -> str:
        """Rows of the same size and kind are judged once."""
        self._learn_needs([row for row in waiting if row.job_id not in self._needs])
        rows = Counter(self._needs[row.job_id] for row in waiting if row.job_id in self._needs)
        with redis_errors():
            paused = self._redis.smembers(PAUSED_KEY)
        stuck: Counter[str] = Counter()
        for need, count in rows.items():
            if need.queue.encode() in paused:
                stuck[f"waiting: queue {need.queue} is paused"] += count
            elif reason := explain_waiting(need.request, need.queue, workers):
                stuck[reason] += count
        return "; ".join(f"{say_count(count, 'row')} {reason}" for reason, count in stuck.items())

    def _learn_needs(self, rows: Sequence[BatchRow]) -> None:
        for row, queued in zip(rows, read_requests(self._redis, rows), strict=True):
            if queued is not None:
                need = Need.of(queued)
                self._needs[row.job_id] = self._kinds.setdefault(need, need)


def _end(status: RowStatus) -> tuple[float, str]:
    return status.times.ended_at or 0.0, status.row.job_id


def _running(found: Sequence[RowStatus], workers: Sequence[WorkerRecord]) -> Iterator[RunningRow]:
    jobs = {worker.job.job_id: (worker.name, worker.job) for worker in workers if worker.job and worker.is_alive}
    for status in found:
        if status.state is RowState.RUNNING:
            row = RunningRow(status.row.label, status.row.job_id, status.times.attempts, status.worker)
            name, job = jobs.get(row.job_id, ("", None))
            yield row if job is None else replace(row, worker=name, phase=job.phase, step=job.step, steps=job.steps)
