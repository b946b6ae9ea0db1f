"""How much work waits and runs, in seconds of one machine: for whoever decides how many machines there are to be.

A long queue is not read whole: jobs are drawn from all its length, and counts are what these stand for. A job that
moves while it is looked for may be missed, until the next time; none is counted twice.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq.suspension import WORKERS_SUSPENDED

from jobs.events import parse_queued, read_first
from jobs.job_status import JOB_KEY, QUEUE_KEY, JobState, JobStatus, Phase, parse_state, read_number, read_text
from jobs.lease import LEASES_KEY, PAUSED_KEY
from jobs.listing import ListedJob, describe_jobs
from jobs.offers import Offer
from jobs.operation import Call, Operation, pipeline, run
from jobs.queues import QueueName
from jobs.render_times import LEAST_S, Estimate, RenderTimes, percentile, read_render_times
from jobs.request import ResolvedRequest
from jobs.workers import parse_time

MOST_JOBS = 2000  # that are looked at: a class's share of the queue is then within 2 percent of it, 19 times of 20
AFTER_STEPS = 0.1  # of a render: the decode, and the last uploads
UNKNOWN = "unknown"  # class of a job that runs, and of which nothing tells any more what it renders
_AT_ONCE = 500  # jobs on one way to Redis
_GOLDEN = 0.6180339887
_QUEUED_FIELDS = ("h3_outcome", "status", "h3_lease", "h3_hidden", "h3_queued_ms")
_RUNNING_FIELDS = ("h3_lease", "h3_cancel", "status", "h3_claimed_ms")


@dataclass(frozen=True, slots=True)
class WaitingClass:
    """Jobs that wait and cost the same."""

    label: str
    count: int
    seconds_each: float  # p75, on one machine

    @property
    def seconds(self) -> float:
        """Together."""
        return self.count * self.seconds_each


@dataclass(frozen=True, slots=True)
class RunningJob:
    """An attempt that goes on."""

    job_id: str
    worker: str  # the id of its record
    remaining_s: float
    label: str = UNKNOWN
    attempt: int = 1
    progress: float = 0.0  # of its steps, from 0 to 1


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is to be rendered. `p75_s` and `p99_s` are of one job of it; if there is none, of one of the usual size."""

    waiting: tuple[WaitingClass, ...]  # what takes longest together comes first
    running: tuple[RunningJob, ...]
    unplaceable: int  # that wait for what no such machine has, or that cannot be read
    p75_s: float
    p99_s: float
    queued: int = 0  # entries of the queues, of which some may be no jobs any more
    looked_at: int = 0  # of these; if not all, the counts are estimates

    @property
    def is_estimated(self) -> bool:
        return self.looked_at < self.queued

    @property
    def waiting_s(self) -> float:
        return sum(each.seconds for each in self.waiting)

    @property
    def running_s(self) -> float:
        return sum(job.remaining_s for job in self.running)

    @property
    def seconds(self) -> float:
        return self.waiting_s + self.running_s

    @property
    def jobs(self) -> int:
        """That wait for such a machine, or run."""
        return sum(each.count for each in self.waiting) + len(self.running)


def read_backlog(
    redis: Redis, *, offer: Offer | None = None, times: RenderTimes | None = None, most_jobs: int = MOST_JOBS
) -> Backlog:
    """What there is to do for workers like those that are to come. Raises RedisUnavailable.

    offer      of such a worker, and the queues that it serves; None: it serves all that wait in the usual ones
    times      by which jobs are judged; else all that was measured on this farm
    most_jobs  that wait, and are looked at
    """
    measured = read_render_times(redis) if times is None else times
    return run(_read(offer, measured, most_jobs), redis)


def _read(offer: Offer | None, times: RenderTimes, most_jobs: int) -> Operation[Backlog]:
    names = tuple(QueueName) if offer is None or offer.queues is None else offer.queues
    now_s, lengths = yield from _read_lengths(names)
    drawn = [_draw(name, length, sum(lengths.values()), most_jobs) for name, length in lengths.items()]
    waiting: list[_Waiting] = []
    for some in drawn:
        waiting += yield from _look_at(some, offer, now_s)
    running = yield from _read_running(names)  # last: what was taken meanwhile is found here
    taken = {each.job.id for each in running}
    backlog = _judge([job for job in waiting if job.job_id not in taken], running, times)
    return replace(backlog, queued=sum(lengths.values()), looked_at=sum(len(some.indices) for some in drawn))


def _judge(waiting: Sequence["_Waiting"], running: Sequence["_Running"], times: RenderTimes) -> Backlog:
    classes = list(_classify(waiting, times))
    runs = [(each, times.estimate(each.request) if each.request else times.estimate_unknown()) for each in running]
    likely = [(estimate, each.count) for each, estimate in classes] + [(estimate, 1) for _, estimate in runs]
    likely = likely or [(times.estimate_unknown(), 1)]
    return Backlog(
        waiting=tuple(sorted((each for each, _ in classes), key=lambda each: (-each.seconds, each.label))),
        running=tuple(_describe(each, estimate) for each, estimate in runs),
        unplaceable=round(sum(job.weight for job in waiting if job.request is None)),
        p75_s=percentile([(estimate.p75_s, count) for estimate, count in likely], 0.75),
        p99_s=percentile([(estimate.p99_s, count) for estimate, count in likely], 0.99),
    )


def _classify(waiting: Sequence["_Waiting"], times: RenderTimes) -> Iterator[tuple[WaitingClass, Estimate]]:
    requests: dict[str, ResolvedRequest] = {}
    weights = defaultdict[str, float](float)
    for job in waiting:
        if job.request is not None:
            label = label_of(job.request)
            requests[label] = job.request
            weights[label] += job.weight
    for label, request in requests.items():
        estimate = times.estimate(request)
        yield WaitingClass(label, round(weights[label]), estimate.p75_s), estimate


def label_of(request: ResolvedRequest) -> str:
    """What a render's cost depends on, in words."""
    named = [name for name in (request.mode, request.precision, request.attention) if name != "auto"]
    size = f"{request.width}x{request.height}, {request.frames} frames, {request.steps} steps"
    return ", ".join([size, *named])


# --- what waits


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Places of a queue that are looked at."""

    queue: str
    indices: Sequence[int]
    weight: float  # jobs that each stands for


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A job that somebody is to render."""

    job_id: str
    weight: float
    request: ResolvedRequest | None  # None: no machine like those in question can serve it, or it cannot be read


def _read_lengths(names: Sequence[str]) -> Operation[tuple[float, dict[str, int]]]:
    """The server's time, and how long those queues are from which jobs are taken."""
    *lengths, paused, is_suspended, time = yield pipeline(
        *(_ask_length(name) for name in names),
        lambda redis: redis.smembers(PAUSED_KEY),
        lambda redis: redis.exists(WORKERS_SUSPENDED),
        lambda redis: redis.time(),
    )
    held = set(names) if is_suspended else set(map(read_text, paused))
    found = zip(names, lengths, strict=True)
    return parse_time(time), {name: length for name, length in found if length and name not in held}


def _ask_length(name: str) -> Call:
    return lambda redis: redis.llen(QUEUE_KEY.format(queue=name))


def _draw(queue: str, length: int, total: int, most: int) -> _Drawn:
    """From a queue by its share of all."""
    indices = choose_indices(length, -(-most * length // total))
    return _Drawn(queue, indices, length / len(indices))


def choose_indices(length: int, most: int) -> Sequence[int]:
    """Where to look in a queue: everywhere, or at one place in each of its equal parts.

    The places are shifted in their parts, by multiples of the golden ratio: of a batch that goes through its sizes
    again and again, equal distances could meet one of them alone.
    """
    if length <= most:
        return range(length)
    part = length / most
    return list(dict.fromkeys(int((number + number * _GOLDEN % 1) * part) for number in range(most)))


def _look_at(drawn: _Drawn, offer: Offer | None, now_s: float) -> Operation[list[_Waiting]]:
    found: list[_Waiting] = []
    for first in range(0, len(drawn.indices), _AT_ONCE):
        entries = yield pipeline(*(_ask_entry(drawn.queue, at) for at in drawn.indices[first : first + _AT_ONCE]))
        job_ids = list(dict.fromkeys(read_text(entry) for entry in entries if entry is not None))
        answers = iter((yield pipeline(*(ask for job_id in job_ids for ask in _ask_queued(job_id)), tolerant=True)))
        for job_id, record, first_event in zip(job_ids, answers, answers, strict=True):
            if _is_wanted(record, request := _read_request(first_event), now_s):
                can_serve = request is not None and not (offer and offer.missing(request, drawn.queue))
                found.append(_Waiting(job_id, drawn.weight, request if can_serve else None))
    return found


def _ask_entry(queue: str, index: int) -> Call:
    return lambda redis: redis.lindex(QUEUE_KEY.format(queue=queue), index)


def _ask_queued(job_id: str) -> tuple[Call, Call]:
    return (lambda redis: redis.hmget(JOB_KEY.format(job_id=job_id), _QUEUED_FIELDS), read_first(job_id))


def _read_request(first_event: Any) -> ResolvedRequest | None:
    queued = None if isinstance(first_event, RedisError) else parse_queued(first_event)
    return None if queued is None else queued.request


def _is_wanted(record: Any, request: ResolvedRequest | None, now_s: float) -> bool:
    """Whether an entry of a queue is a job that is to be rendered, by whomever."""
    if isinstance(record, RedisError):
        return False
    outcome, status, lease, is_hidden, queued_ms = map(read_text, record)
    if is_hidden or parse_state(outcome, status, lease) is not JobState.QUEUED:
        return False
    deadline_s = request.deadline_s if request else None
    waited_s = now_s - (read_number(queued_ms) or now_s * 1000) / 1000
    return deadline_s is None or waited_s < deadline_s


# --- what runs


@dataclass(frozen=True, slots=True)
class _Running:
    """A job as a list has it, and since when its attempt runs."""

    job: ListedJob
    age_s: float

    @property
    def request(self) -> ResolvedRequest | None:
        return self.job.request


def _read_running(names: Sequence[str]) -> Operation[list[_Running]]:
    """All that holds a lease and goes on, of those queues."""
    leased = list(map(read_text, (yield lambda redis: redis.zrange(LEASES_KEY, 0, -1))))
    found: list[_Running] = []
    for first in range(0, len(leased), _AT_ONCE):
        some = leased[first : first + _AT_ONCE]
        *records, time = yield pipeline(*map(_ask_running, some), lambda redis: redis.time(), tolerant=True)
        ages = {job_id: _read_age(record, parse_time(time)) for job_id, record in zip(some, records, strict=True)}
        listed = yield from describe_jobs([job_id for job_id, age_s in ages.items() if age_s is not None])
        found += [
            _Running(job, ages[job.id] or 0.0) for job in listed if job.state is JobState.RUNNING and job.queue in names
        ]
    return found


def _ask_running(job_id: str) -> Call:
    return lambda redis: redis.hmget(JOB_KEY.format(job_id=job_id), _RUNNING_FIELDS)


def _read_age(record: Any, now_s: float) -> float | None:
    """Since its attempt was begun; None of one that is about to stop because nobody wants it, or that is no job."""
    if isinstance(record, RedisError):
        return None
    lease, cancel, status, claimed_ms = map(read_text, record)
    if not lease or cancel == lease or status in ("canceled", "stopped"):
        return None
    return max(0.0, now_s - (read_number(claimed_ms) or now_s * 1000) / 1000)


def _describe(running: _Running, estimate: Estimate) -> RunningJob:
    job = running.job
    return RunningJob(
        job_id=job.id,
        worker=job.worker,
        remaining_s=estimate_remaining(job, estimate.p75_s, running.age_s),
        label=label_of(job.request) if job.request else UNKNOWN,
        attempt=job.attempt,
        progress=_find_progress(job),
    )


def estimate_remaining(status: JobStatus, whole_s: float, age_s: float) -> float:
    """Until a running job has its result: by its own pace as soon as there is one. Never 0.

    whole_s  that a render of its class takes
    age_s    of its attempt; one that goes on from a checkpoint counts as whole until it tells a step
    """
    after_steps_s = AFTER_STEPS * whole_s
    match status.phase, status.eta_s:
        case Phase.DECODE, eta_s:
            left_s = after_steps_s if eta_s is None else eta_s
        case Phase.DENOISE, float(eta_s):
            left_s = eta_s + after_steps_s
        case _:
            left_s = max(whole_s - age_s, after_steps_s)  # late, and far from its end all the same
    return max(LEAST_S, left_s)


def _find_progress(job: JobStatus) -> float:
    if job.phase is Phase.DECODE:
        return 1.0
    return job.step / job.steps if job.step is not None and job.steps else 0.0
