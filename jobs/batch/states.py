"""The jobs of a batch's rows, many at a time: where each stands, and all of them retried or canceled."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from jobs.batch.chunks import ROWS_A_CALL, in_chunks
from jobs.batch.history import read_requests
from jobs.batch.progress import RowState, RowTimes
from jobs.batch.record import BatchRow
from jobs.connection import redis_errors
from jobs.job_status import JOB_KEY, parse_state, read_number, read_text
from jobs.lease import LEASES_KEY, run_scripts
from jobs.operation import Call, pipeline, run
from jobs.workers import server_time

STATUS_FIELDS = (
    "status",
    "h3_outcome",
    "h3_lease",
    "h3_attempts",
    "h3_busy_ms",
    "h3_claimed_ms",
    "h3_queued_ms",
    "h3_ended_ms",
    "worker_name",
)
LATEST_MS = 4_102_444_800_000  # 2100-01-01: what is later was not written by us


@dataclass(frozen=True, slots=True)
class RowStatus:
    """A row as Redis has it."""

    row: BatchRow
    times: RowTimes
    worker: str  # of its last attempt, or empty

    @property
    def state(self) -> RowState:
        return self.times.state


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a batch's rows that had failed or were dead."""

    queued: int
    late: int  # left out: their deadline has passed, and they would fail again at once


@dataclass(frozen=True, slots=True)
class Canceled:
    """What became of a batch's rows that were still to end."""

    canceled: int  # they waited
    stopping: int  # their attempts stop between two steps


def read_statuses(redis: Redis, rows: Sequence[BatchRow]) -> list[RowStatus]:
    """Where each row stands. Raises RedisUnavailable."""
    return [status for chunk in in_chunks(rows, ROWS_A_CALL) for status in _read_chunk(redis, chunk)]


def _read_chunk(redis: Redis, rows: Sequence[BatchRow]) -> Iterator[RowStatus]:
    with redis_errors():
        answers = pipeline(*ask_statuses(rows))(redis)
    return parse_statuses(rows, answers)


def ask_statuses(rows: Sequence[BatchRow]) -> list[Call]:
    """One call more than rows. `parse_statuses` reads the answers."""
    jobs = [row.job_id for row in rows]
    return [*map(_ask_record, rows), lambda redis: redis.zmscore(LEASES_KEY, jobs)]


def _ask_record(row: BatchRow) -> Call:
    return lambda redis: redis.hmget(JOB_KEY.format(job_id=row.job_id), STATUS_FIELDS)


def parse_statuses(rows: Sequence[BatchRow], answers: Sequence[Any]) -> Iterator[RowStatus]:
    *records, leases = answers
    return map(_parse_row, rows, records, leases)


def _parse_row(row: BatchRow, answer: Sequence[bytes | None], leased_until_ms: float | None) -> RowStatus:
    told = dict(zip(STATUS_FIELDS, map(read_text, answer), strict=True))
    state = RowState(parse_state(told["h3_outcome"], told["status"], told["h3_lease"]))
    times = RowTimes(
        state=state if row.job_id else RowState.NOT_QUEUED,
        attempts=read_number(told["h3_attempts"]) or 0,
        ended_busy_s=_seconds(told["h3_busy_ms"]) or 0.0,
        claimed_at=_seconds(told["h3_claimed_ms"]),
        leased_until=None if leased_until_ms is None else leased_until_ms / 1000,
        queued_at=_seconds(told["h3_queued_ms"]),
        ended_at=_seconds(told["h3_ended_ms"]),
    )
    return RowStatus(row, times, told["worker_name"])


def _seconds(text: str) -> float | None:
    ms = read_number(text)
    return None if ms is None or ms > LATEST_MS else ms / 1000


def retry_rows(redis: Redis, statuses: Sequence[RowStatus]) -> Retried:
    """Queue failed and dead ones again, with all their attempts. They go first, in their order."""
    lost = [status for status in statuses if status.state.is_lost]
    late = _find_late(redis, lost)
    in_time = [status for status in lost if status.row.job_id not in late]
    # Each goes to the head of its queue.
    answers = _command(redis, in_time[::-1], lambda row: ("retry_dead", row.job_id))
    return Retried(sum(map(bool, answers)), len(lost) - len(in_time))


def _find_late(redis: Redis, statuses: Sequence[RowStatus]) -> set[str]:
    """Jobs that a worker would give up instead of beginning them: their deadline counts from the submit."""
    with redis_errors():
        now = server_time(redis)
    late: set[str] = set()
    for status, queued in zip(statuses, read_requests(redis, [status.row for status in statuses]), strict=True):
        deadline_s, queued_at = queued.request.deadline_s if queued else None, status.times.queued_at
        if deadline_s is not None and queued_at is not None and now - queued_at >= deadline_s:
            late.add(status.row.job_id)
    return late


def cancel_rows(redis: Redis, statuses: Sequence[RowStatus]) -> Canceled:
    """End all that have not ended: the last first, so that no worker begins what is canceled next."""
    left = [status for status in statuses if status.state.is_left]
    answers = _command(redis, left[::-1], lambda row: ("cancel", row.job_id, ""))
    outcomes = [bytes(outcome) for outcome, _ in answers]
    return Canceled(outcomes.count(b"canceled"), outcomes.count(b"asked"))


def _command(redis: Redis, statuses: Sequence[RowStatus], words: Callable[[BatchRow], tuple[str, ...]]) -> list[Any]:
    calls = [words(status.row) for status in statuses]
    return [answer for chunk in in_chunks(calls, ROWS_A_CALL) for answer in run(run_scripts(chunk), redis)]
