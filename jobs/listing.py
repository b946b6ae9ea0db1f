"""The latest jobs of a farm, from what Redis has of them: its queues, leases and RQ's registries of ended jobs.

However many jobs there are, only the latest few of each of these are looked at, so a list is a few ways to Redis.
Registries go by the end of their jobs: one that was submitted late and ended long before a hundred others of its queue
is not listed.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import nlargest
from itertools import chain, count, islice
from typing import Any

from pydantic import Field

from jobs.events import Event, Queued, parse_entries, parse_queued, read_first, read_latest
from jobs.job_status import (
    JOB_KEY,
    LATEST_EVENTS,
    QUEUE_KEY,
    JobFacts,
    JobState,
    JobStatus,
    judge_end,
    judge_queued,
    judge_running,
    parse_state,
    read_number,
    read_text,
)
from jobs.lease import DEAD_KEY, LEASES_KEY, PAUSED_KEY
from jobs.operation import Call, Operation, pipeline
from jobs.request import ResolvedRequest
from jobs.workers import WORKERS_KEY, WorkerRecord, parse_time, parse_workers

QUEUES_KEY = "rq:queues"
MOST_LISTED = 1000
_PAGE = 100  # of each place, at a time
_WAITS = frozenset({JobState.QUEUED, JobState.WAITING})
_REGISTRIES = {JobState.FINISHED: "finished", JobState.FAILED: "failed", JobState.CANCELED: "canceled"}
_FIELDS = (
    "h3_outcome",
    "status",
    "h3_lease",
    "origin",
    "h3_attempts",
    "worker_name",
    "h3_queued_ms",
    "h3_ended_ms",
    "h3_owner",
    "h3_hidden",
)

Place = Callable[[int, int], Call]  # ids of jobs, from one number to another, the latest first


class ListedJob(JobStatus):
    """A job as a list shows it."""

    submitted_at: datetime | None = None
    ended_at: datetime | None = None
    owner: str = ""  # of the HTTP service's tokens; empty for who submits to the queue itself
    prompt: str = ""  # empty if it can no longer be read
    request: ResolvedRequest | None = Field(None, exclude=True)  # likewise


@dataclass(frozen=True, slots=True)
class _Farm:
    """What the states of all jobs depend on."""

    queues: tuple[str, ...]
    paused: frozenset[str]
    workers: tuple[WorkerRecord, ...]
    now_s: float


@dataclass(frozen=True, slots=True)
class _Found:
    """A job of which the record was read, and not yet the events."""

    job_id: str
    record: JobFacts
    queued_ms: int  # 0 if it is not known
    ended_ms: int  # likewise
    owner: str
    is_hidden: bool  # somebody has deleted it while it runs


def list_jobs(
    *, states: Collection[JobState] = (), queues: Collection[str] = (), limit: int = 20
) -> Operation[list[ListedJob]]:
    """The latest jobs by their submission, the last one first; of some states and queues, if any are given."""
    wanted = frozenset(states or JobState)
    farm = yield from _read_farm()
    places = list(_find_places(wanted, [queue for queue in farm.queues if not queues or queue in queues]))
    size = max(limit, _PAGE)
    known: set[str] = set()
    listed: list[ListedJob] = []
    for first in count(0, size):
        pages = yield pipeline(*(place(first, first + size - 1) for place in places))
        ids = dict.fromkeys(read_text(job_id) for page in pages for job_id in page)
        found = yield from _read_records([job_id for job_id in ids if job_id not in known], farm)
        fitting = [job for job in found if not job.is_hidden and _may_be(job.record, wanted, queues)]
        listed += yield from _describe(_choose(fitting, wanted, limit), farm, wanted)
        known |= ids.keys()
        if len(listed) >= limit or all(len(page) < size for page in pages):
            break
    return (yield from _add_positions(sorted(listed, key=submit_time, reverse=True)[:limit]))


def describe_jobs(ids: Sequence[str]) -> Operation[list[ListedJob]]:
    """These jobs, in their order, as a list shows them; those that nobody knows, or is to be shown, are left out."""
    *answers, time = yield pipeline(*map(_ask_record, ids), lambda redis: redis.time())
    found = [_parse_record(job_id, answer, parse_time(time)) for job_id, answer in zip(ids, answers, strict=True)]
    shown = [job for job in found if job.record.state is not JobState.UNKNOWN and not job.is_hidden]
    # What workers there are, those that wait depend on alone; and they may be many.
    needs_farm = any(job.record.state is JobState.QUEUED for job in shown)
    farm = (yield from _read_farm()) if needs_farm else _Farm((), frozenset(), (), parse_time(time))
    return (yield from _add_positions((yield from _describe(shown, farm, frozenset(JobState)))))


def _read_farm() -> Operation[_Farm]:
    queues, paused, workers, time = yield pipeline(
        lambda redis: redis.smembers(QUEUES_KEY),
        lambda redis: redis.smembers(PAUSED_KEY),
        lambda redis: redis.hgetall(WORKERS_KEY),
        lambda redis: redis.time(),
    )
    prefix, now_s = QUEUE_KEY.format(queue=""), parse_time(time)
    return _Farm(
        queues=tuple(sorted(read_text(key).removeprefix(prefix) for key in queues)),
        paused=frozenset(map(read_text, paused)),
        workers=tuple(parse_workers(workers, now_s)),
        now_s=now_s,
    )


def _find_places(wanted: Collection[JobState], queues: Sequence[str]) -> Iterator[Place]:
    """Where jobs of these states and queues are."""
    if JobState.RUNNING in wanted:
        yield _ranked(LEASES_KEY)
    if JobState.DEAD in wanted:
        yield _ranked(DEAD_KEY)
    for queue in queues:
        if _WAITS & set(wanted):
            yield from _both_ends(QUEUE_KEY.format(queue=queue))
        for state in _REGISTRIES.keys() & set(wanted):
            yield _ranked(f"rq:{_REGISTRIES[state]}:{queue}")


def _ranked(key: str) -> Place:
    return lambda first, last: lambda redis: redis.zrevrange(key, first, last)


def _both_ends(key: str) -> Iterator[Place]:
    """Of a queue: what is new is at its end, what was given back at its head."""
    yield lambda first, last: lambda redis: redis.lrange(key, -last - 1, -first - 1)
    yield lambda first, last: lambda redis: redis.lrange(key, first, last)


def _read_records(ids: Sequence[str], farm: _Farm) -> Operation[list[_Found]]:
    answers = yield pipeline(*map(_ask_record, ids))
    return [_parse_record(job_id, answer, farm.now_s) for job_id, answer in zip(ids, answers, strict=True)]


def _ask_record(job_id: str) -> Call:
    return lambda redis: redis.hmget(JOB_KEY.format(job_id=job_id), _FIELDS)


def _parse_record(job_id: str, answer: Sequence[bytes | None], now_s: float) -> _Found:
    told = dict(zip(_FIELDS, (read_text(value) for value in answer), strict=True))
    record = JobFacts(
        state=parse_state(told["h3_outcome"], told["status"], told["h3_lease"]),
        redis_state=told["h3_outcome"] or told["status"],
        queue=told["origin"],
        attempt=read_number(told["h3_attempts"]) or 0,
        worker=told["worker_name"],
        lease_until_ms=None,
        now_s=now_s,
    )
    return _Found(
        job_id,
        record,
        queued_ms=read_number(told["h3_queued_ms"]) or 0,
        ended_ms=read_number(told["h3_ended_ms"]) or 0,
        owner=told["h3_owner"],
        is_hidden=bool(told["h3_hidden"]),
    )


def _may_be(record: JobFacts, wanted: Collection[JobState], queues: Collection[str]) -> bool:
    """As far as its record goes: whether a queued one waits for a worker, its request decides."""
    states = _WAITS if record.state in _WAITS else {record.state}
    is_known = record.state is not JobState.UNKNOWN
    return is_known and bool(states & set(wanted)) and (not queues or record.queue in queues)


def _choose(found: Sequence[_Found], wanted: Collection[JobState], limit: int) -> Sequence[_Found]:
    """Those whose events are worth reading: the latest, unless these will tell which are wanted."""
    is_decided = len(_WAITS & set(wanted)) != 1
    return nlargest(limit, found, key=lambda job: job.queued_ms) if is_decided else found


def _describe(found: Sequence[_Found], farm: _Farm, wanted: Collection[JobState]) -> Operation[list[ListedJob]]:
    """With what the events tell; those that are wanted after that."""
    questions = [_ask_events(job) for job in found]
    answers = iter((yield pipeline(*chain.from_iterable(questions))))
    taken = [list(islice(answers, len(asked))) for asked in questions]
    listed = [_parse_events(job, told, farm) for job, told in zip(found, taken, strict=True)]
    return [job for job in listed if job.state in wanted]


def _ask_events(job: _Found) -> Sequence[Call]:
    """The first event, which has the request; and of a job that was begun the latest, and its lease."""
    first = read_first(job.job_id)
    if job.record.state is JobState.QUEUED:
        return (first,)
    most = LATEST_EVENTS if job.record.state is JobState.RUNNING else 1
    return (first, read_latest(job.job_id, most), lambda redis: redis.zscore(LEASES_KEY, job.job_id))


def _parse_events(job: _Found, answers: Sequence[Any], farm: _Farm) -> ListedJob:
    queued = parse_queued(answers[0])
    latest, lease_until_ms = answers[1:] or ([], None)
    record = replace(job.record, lease_until_ms=lease_until_ms)
    status = _judge(job.job_id, record, queued, parse_entries(latest), farm)
    return ListedJob(
        **status.model_dump(),
        submitted_at=read_time(job.queued_ms),
        ended_at=read_time(job.ended_ms),
        owner=job.owner,
        prompt=queued.request.prompt if queued else "",
        request=queued.request if queued else None,
    )


def read_time(ms: int) -> datetime | None:
    """Of a record: 0 if it is not known."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def _judge(job_id: str, record: JobFacts, queued: Queued | None, latest: Sequence[Event], farm: _Farm) -> JobStatus:
    """latest  events, the last one first"""
    match record.state:
        case JobState.QUEUED:
            is_paused = record.queue in farm.paused
            return judge_queued(job_id, record, None, queued, is_paused=is_paused, workers=farm.workers)
        case JobState.RUNNING:
            return judge_running(job_id, record, latest[::-1])
        case _:
            return judge_end(job_id, record, latest)


def _add_positions(jobs: Sequence[ListedJob]) -> Operation[list[ListedJob]]:
    """Where those that wait are in their queues: looked for from the end, where the latest are."""
    waiting = [job for job in jobs if job.state in _WAITS]
    if not waiting:
        return list(jobs)
    indices = yield pipeline(*map(_ask_index, waiting))
    positions = {job.id: index + 1 for job, index in zip(waiting, indices, strict=True) if index is not None}
    return [job.model_copy(update={"position": positions.get(job.id)}) for job in jobs]


def _ask_index(job: ListedJob) -> Call:
    return lambda redis: redis.lpos(QUEUE_KEY.format(queue=job.queue), job.id, rank=-1)


def submit_time(job: ListedJob) -> datetime:
    """To sort by: what is not known comes first."""
    return job.submitted_at or datetime.fromtimestamp(0, UTC)
