"""Where a job stands, honestly: what is asked of Redis, and what its answers mean."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError

from jobs import events
from jobs.events import Event, parse_entries, parse_queued, read_first, read_latest
from jobs.lease import LEASES_KEY, PAUSED_KEY
from jobs.operation import Operation, pipeline
from jobs.workers import WORKERS_KEY, WorkerRecord, explain_waiting, parse_time, parse_workers

JOB_KEY = "rq:job:{job_id}"
QUEUE_KEY = "rq:queue:{queue}"
LATEST_EVENTS = 64  # enough for the steps, previews and checkpoints that an estimate needs
_STEPS_TIMED = 8
_IN_NO_QUEUE = "somebody has deleted it from its queue: `h3render cancel` ends it, then submit it again"


def estimate_denoise(step_seconds: Sequence[float], steps_left: int) -> float:
    """How long the rest of the steps takes, by the latest ones: the first of a size is slow."""
    return statistics.median(step_seconds[-_STEPS_TIMED:]) * steps_left


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"  # a worker will take it, in its turn
    WAITING = "waiting"  # queued, and no worker that is alive will take it as things are
    RUNNING = "running"
    FINISHED = "finished"  # its result is committed
    FAILED = "failed"  # it cannot be done; the reason says what to mend
    DEAD = "dead"  # it has used up its attempts; `h3render dead retry` gives them back
    CANCELED = "canceled"
    UNKNOWN = "unknown"  # Redis has no record of it that we can read

    @property
    def is_queued(self) -> bool:
        """It is in a queue, whoever may take it."""
        return self in (JobState.QUEUED, JobState.WAITING)

    @property
    def is_ended(self) -> bool:
        """Nothing more happens to it by itself."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.DEAD, JobState.CANCELED)


class Phase(StrEnum):
    """What an attempt does."""

    TEXT = "text"
    DENOISE = "denoise"
    DECODE = "decode"


class JobStatus(BaseModel):
    """Where a job stands. What does not apply to its state is None or empty."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    state: JobState
    queue: str = ""
    attempt: int = 0  # the running one, else the last one; 0 before the first
    position: int | None = None  # in its queue; 1 is next
    waiting_for: str = ""  # why no worker that is alive will take it
    worker: str = ""  # that runs it
    phase: Phase | None = None
    step: int | None = None  # 1-based, the last one that is done
    steps: int | None = None
    eta_s: float | None = None  # to the end of the phase; the decode takes a few percent of a render
    reason: str = ""  # of a failed, dead or unknown job; or why a running one may be in trouble

    @property
    def is_ended(self) -> bool:
        return self.state.is_ended

    def describe(self) -> str:
        """In words, for a line."""
        match self.state:
            case JobState.QUEUED:
                return f"queued in {self._describe_place()}{self.reason and f': {self.reason}'}"
            case JobState.WAITING:
                return f"{self.waiting_for}; in {self._describe_place()}{self.reason and f': {self.reason}'}"
            case JobState.RUNNING:
                return ", ".join(part for part in self._describe_run() if part)
            case _:
                return f"{self.state}: {self.reason}" if self.reason else str(self.state)

    def _describe_place(self) -> str:
        return self.queue if self.position is None else f"{self.queue}, number {self.position}"

    def _describe_run(self) -> Sequence[str]:
        step = f" {self.step}/{self.steps}" if self.step is not None else ""
        return (
            f"running on {self.worker}",
            f"attempt {self.attempt}",
            f"{self.phase}{step}" if self.phase else "",
            f"{self.eta_s:.0f} s left" if self.eta_s is not None else "",
            self.reason,
        )


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the job's hash says, as whoever wrote it there left it."""

    state: JobState
    redis_state: str  # in Redis' words
    queue: str
    attempt: int
    worker: str
    lease_until_ms: float | None
    now_s: float  # by the server's clock


def read_status(job_id: str) -> Operation[JobStatus]:
    """Where a job stands."""
    record = yield from read_record(job_id)
    if record.state is JobState.QUEUED:
        return (yield from _look_at_queued(job_id, record))
    if record.state is JobState.UNKNOWN:
        return judge_unknown(job_id, record)
    told = parse_entries((yield read_latest(job_id, LATEST_EVENTS if record.state is JobState.RUNNING else 1)))
    return (
        judge_running(job_id, record, told[::-1])
        if record.state is JobState.RUNNING
        else judge_end(job_id, record, told)
    )


def read_record(job_id: str) -> Operation[JobFacts]:
    """What Redis says of the job itself, without its events."""
    fields = ("h3_outcome", "status", "h3_lease", "origin", "h3_attempts", "worker_name")
    answers = yield pipeline(
        lambda redis: redis.hmget(JOB_KEY.format(job_id=job_id), *fields),
        lambda redis: redis.zscore(LEASES_KEY, job_id),
        lambda redis: redis.time(),
    )
    told, lease_until_ms, time = answers
    outcome, status, lease, queue, attempts, worker = (read_text(value) for value in told)
    return JobFacts(
        state=parse_state(outcome, status, lease),
        redis_state=outcome or status,
        queue=queue,
        attempt=read_number(attempts) or 0,
        worker=worker,
        lease_until_ms=lease_until_ms,
        now_s=parse_time(time),
    )


def parse_state(outcome: str, status: str, lease: str) -> JobState:
    """What lease.lua and RQ have noted, as lease.lua judges it.

    RQ's tools may cancel an attempt that runs on, take a finished job for an abandoned one, or queue again what had
    ended: `h3render` gives no job a second result.
    """
    if lease and not outcome:
        return JobState.RUNNING
    is_queued_again = status == "queued" and outcome != "finished"
    match status if is_queued_again else outcome or status:
        case "finished" | "failed" | "dead" | "canceled" | "queued" as state:
            return JobState(state)
        case "started":
            return JobState.RUNNING
        case "stopped":  # as RQ's tools say it
            return JobState.CANCELED
        case _:
            return JobState.UNKNOWN


def _look_at_queued(job_id: str, record: JobFacts) -> Operation[JobStatus]:
    # Any of these keys may be somebody else's: the rest is told all the same.
    answers = yield pipeline(
        lambda redis: redis.lpos(QUEUE_KEY.format(queue=record.queue), job_id),
        read_first(job_id),
        lambda redis: redis.sismember(PAUSED_KEY, record.queue),
        lambda redis: redis.hgetall(WORKERS_KEY),
        tolerant=True,
    )
    index, first, paused, workers = (None if isinstance(answer, RedisError) else answer for answer in answers)
    if index is None and (yield from read_record(job_id)).state is not JobState.QUEUED:
        return (yield from read_status(job_id))  # it was taken, or has ended, since
    alive = parse_workers(workers or {}, record.now_s)
    status = judge_queued(job_id, record, index, parse_queued(first or []), is_paused=bool(paused), workers=alive)
    return status if index is not None else status.model_copy(update={"reason": _IN_NO_QUEUE})


def judge_queued(
    job_id: str,
    record: JobFacts,
    index: int | None,
    queued: events.Queued | None,
    *,
    is_paused: bool,
    workers: Sequence[WorkerRecord],
) -> JobStatus:
    """index  in its queue, 0 is next; None if it is in none"""
    if is_paused:
        waiting_for = f"waiting: queue {record.queue} is paused"
    else:
        waiting_for = explain_waiting(queued.request, record.queue, workers) if queued else ""
    return JobStatus(
        id=job_id,
        state=JobState.WAITING if waiting_for else JobState.QUEUED,
        queue=record.queue,
        attempt=record.attempt,
        position=None if index is None else index + 1,
        waiting_for=waiting_for,
    )


def judge_running(job_id: str, record: JobFacts, told: Sequence[Event]) -> JobStatus:
    """told  the latest events, in their order"""
    begun = [index for index, event in enumerate(told) if isinstance(event, events.Started)]
    attempt = told[begun[-1] :] if begun else told
    status = JobStatus(
        id=job_id,
        state=JobState.RUNNING,
        queue=record.queue,
        attempt=record.attempt,
        worker=record.worker,
        reason=_explain_silence(record),
    )
    return status.model_copy(update=_judge_phase(attempt, record.now_s))


def _explain_silence(record: JobFacts) -> str:
    if record.lease_until_ms is None:
        return "nobody holds its lease: `h3render cancel` ends it, then submit it again"
    late_s = record.now_s - record.lease_until_ms / 1000
    return f"its worker is silent, the lease ran out {late_s:.0f} s ago: another one takes it" if late_s > 0 else ""


def _judge_phase(attempt: Sequence[Event], now_s: float) -> dict[str, object]:
    """Phase, step, steps and what is left of the phase."""
    steps = [event for event in attempt if isinstance(event, events.StepDone)]
    opened = next((event for event in attempt if isinstance(event, events.StreamOpened)), None)
    if opened is not None:
        segments = [event for event in attempt if isinstance(event, events.SegmentReady)]
        done = segments[-1].index + 1 if segments else 0
        eta_s = _estimate_decode(opened, segments, now_s)
        return {"phase": Phase.DECODE, "step": done, "steps": opened.segments, "eta_s": eta_s}
    if steps:
        last = steps[-1]
        if last.step >= last.steps:
            return {"phase": Phase.DECODE}
        left_s = estimate_denoise([step.seconds for step in steps], last.steps - last.step) - _age(last, now_s)
        return {"phase": Phase.DENOISE, "step": last.step, "steps": last.steps, "eta_s": max(0.0, left_s)}
    if any(isinstance(event, events.TextEncoded) for event in attempt):
        return {"phase": Phase.DENOISE}
    return {"phase": Phase.TEXT}


def _estimate_decode(
    opened: events.StreamOpened, segments: Sequence[events.SegmentReady], now_s: float
) -> float | None:
    """By those of this attempt; one that goes on with an earlier one's stream begins later."""
    timed = [event for event in segments if event.at is not None]
    if not timed or opened.at is None:
        return None
    segment_s = (_age(opened, now_s) - _age(timed[-1], now_s)) / len(timed)
    return max(0.0, segment_s * (opened.segments - timed[-1].index - 1) - _age(timed[-1], now_s))


def _age(event: Event, now_s: float) -> float:
    return now_s - event.at.timestamp() if event.at is not None else 0.0


def judge_end(job_id: str, record: JobFacts, told: Sequence[Event]) -> JobStatus:
    """told  the last event, if it is still there"""
    return JobStatus(
        id=job_id, state=record.state, queue=record.queue, attempt=record.attempt, reason=_find_reason(record, told)
    )


def _find_reason(record: JobFacts, told: Sequence[Event]) -> str:
    match told[0] if told else None:
        case events.Failed(reason=reason) if record.state is JobState.FAILED:
            return reason
        case events.Dead(losses=losses) if record.state is JobState.DEAD:
            return "; ".join(f"attempt {loss.attempt} on {loss.worker}: {loss.reason}" for loss in losses)
        case None if record.state in (JobState.FAILED, JobState.DEAD):
            return "its last event is gone"
        case _:
            return ""


def judge_unknown(job_id: str, record: JobFacts) -> JobStatus:
    if record.redis_state:
        reason = f"its record says {record.redis_state[:100]!a}, which nothing of h3render writes"
    else:
        reason = f"no job {job_id}: ids are printed by `h3render submit`; records stay 30 days"
    return JobStatus(id=job_id, state=JobState.UNKNOWN, reason=reason)


def read_text(value: bytes | None) -> str:
    """What Redis has, whoever wrote it there."""
    return (value or b"").decode("utf-8", "replace")


def read_number(text: str) -> int | None:
    """Likewise; None for what is no number that we would write."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None
