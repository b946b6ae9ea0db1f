"""What the page asks of Redis at each look: the jobs that its visitor may see, the queues and the workers."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from jobs.events import parse_entries, read_latest
from jobs.http.callers import Caller
from jobs.http.page.farm_views import BatchTile, Farm, Queue, list_workers
from jobs.http.page.views import (
    News,
    find_news,
    show_finished,
    show_lost,
    show_running,
    show_waiting,
    sort_waiting,
)
from jobs.job_status import JOB_KEY, LATEST_EVENTS, QUEUE_KEY, JobState, read_number, read_text
from jobs.lease import PAUSED_KEY
from jobs.listing import ListedJob, describe_jobs, list_jobs, read_time, submit_time
from jobs.operation import Call, Operation, pipeline
from jobs.pieces import KeptPieces
from jobs.queues import QueueName
from jobs.submitted import OPEN_KEY, ask_entries, submitted_key
from jobs.workers import WORKERS_KEY, WorkerRecord, parse_time, parse_workers

MOST_RUNNING = 24
MOST_WAITING = 30
MOST_LOST = 8
GALLERY_STEP = 24
MOST_FINISHED = 20 * GALLERY_STEP
PAGE, MOST_PAGES = 100, 5  # of what an owner has submitted, at one look
_LOST = (JobState.FAILED, JobState.DEAD)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What is the same for every job."""

    queues: tuple[Queue, ...]
    heads: tuple[str, ...]  # ids of jobs, as workers will take them
    workers: tuple[WorkerRecord, ...]
    now: datetime  # by Redis' clock


@dataclass(frozen=True, slots=True)
class _Seen:
    """The jobs that a visitor may see."""

    running: Sequence[ListedJob]
    waiting: Sequence[ListedJob]
    waiting_in_all: int
    lost: Sequence[ListedJob]
    finished: Sequence[ListedJob]  # one more than are shown, if there are more


def read_farm(caller: Caller, shown: int, batches: Sequence[BatchTile]) -> Operation[Farm]:
    """All that changes on the page. shown: how many finished renders"""
    around = yield from _look_around()
    seen = yield from (_read_all(around, shown) if caller.sees_all else _read_own(caller, shown))
    running = sorted(seen.running, key=submit_time)
    news = yield from _read_news([job.id for job in running])
    finished = sorted(seen.finished, key=_ended, reverse=True)
    has_more = len(finished) > shown and shown < MOST_FINISHED
    return Farm(
        running=tuple(show_running(job, told, around.now) for job, told in zip(running, news, strict=True)),
        waiting=tuple(sort_waiting(list(map(show_waiting, seen.waiting)))[:MOST_WAITING]),
        waiting_in_all=seen.waiting_in_all,
        lost=tuple(map(show_lost, sorted(seen.lost, key=_ended, reverse=True))),
        finished=tuple(map(show_finished, finished[:shown])),
        more_finished=shown + GALLERY_STEP if has_more else 0,
        workers=list_workers(around.workers),
        queues=around.queues,
        batches=tuple(batches),
    )


def _look_around() -> Operation[_Surroundings]:
    names = list(map(str, QueueName))
    keys = [QUEUE_KEY.format(queue=name) for name in names]
    answers = yield pipeline(
        lambda redis: redis.smembers(PAUSED_KEY),
        lambda redis: redis.hgetall(WORKERS_KEY),
        lambda redis: redis.time(),
        *(_ask_length(key) for key in keys),
        *(_ask_head(key) for key in keys),
    )
    paused, workers, time, *rest = answers
    lengths, heads = rest[: len(keys)], rest[len(keys) :]
    now_s = parse_time(time)
    return _Surroundings(
        queues=tuple(Queue(name, length, name.encode() in paused) for name, length in zip(names, lengths, strict=True)),
        heads=tuple(read_text(job_id) for head in heads for job_id in head),
        workers=tuple(parse_workers(workers, now_s)),
        now=datetime.fromtimestamp(now_s, UTC),
    )


def _read_all(around: _Surroundings, shown: int) -> Operation[_Seen]:
    """Of the whole farm, whoever has submitted it."""
    running = yield from list_jobs(states=(JobState.RUNNING,), limit=MOST_RUNNING)
    waiting = yield from describe_jobs(around.heads[:MOST_WAITING])
    lost = yield from list_jobs(states=_LOST, limit=MOST_LOST)
    finished = yield from list_jobs(states=(JobState.FINISHED,), limit=shown + 1)
    return _Seen(
        running=running,
        waiting=[job for job in waiting if job.state.is_queued],
        waiting_in_all=sum(queue.length for queue in around.queues),
        lost=lost,
        finished=finished,
    )


def _read_own(caller: Caller, shown: int) -> Operation[_Seen]:
    """All that this caller has submitted and that has not ended, and the latest of what has."""
    ids = yield lambda redis: redis.smembers(OPEN_KEY.format(owner=caller.name))
    known = set(map(read_text, ids))
    still_open = yield from describe_jobs(list(known))
    others = yield from _read_others(caller.name, known, shown + 1)
    jobs = sorted([*still_open, *others], key=submit_time, reverse=True)
    waiting = [job for job in jobs if job.state.is_queued]
    return _Seen(
        running=_of(jobs, JobState.RUNNING)[:MOST_RUNNING],
        waiting=waiting,
        waiting_in_all=len(waiting),
        lost=_of(jobs, *_LOST)[:MOST_LOST],
        finished=_of(jobs, JobState.FINISHED)[: shown + 1],
    )


def _read_others(owner: str, known: Set[str], wanted: int) -> Operation[list[ListedJob]]:
    """The latest by submit, until so many are finished: many may be canceled, or no longer there."""
    found: list[ListedJob] = []
    bound, size = None, len(known) + PAGE
    for _ in range(MOST_PAGES):
        entries = yield ask_entries(submitted_key(owner), bound, size)
        ids = [read_text(job_id) for job_id, _ in entries]
        found += yield from describe_jobs([job_id for job_id in ids if job_id not in known])
        if len(entries) < size or len(_of(found, JobState.FINISHED)) >= wanted:
            break
        bound, size = entries[-1][1], max(PAGE, wanted)
    return found


def _of(jobs: Iterable[ListedJob], *states: JobState) -> list[ListedJob]:
    return [job for job in jobs if job.state in states]


def _read_news(ids: Sequence[str]) -> Operation[list[News]]:
    """What running jobs have told lately, and what their records say of their attempts."""
    answers = yield pipeline(*(read_latest(job_id, LATEST_EVENTS) for job_id in ids), *map(_ask_attempt, ids))
    told, records = answers[: len(ids)], answers[len(ids) :]
    return [
        find_news(
            parse_entries(entries),
            KeptPieces.parse(kept or b""),
            claimed_at=read_time(read_number(read_text(claimed)) or 0),
            is_stopping=bool(stopped),
        )
        for entries, (claimed, stopped, kept) in zip(told, records, strict=True)
    ]


def _ask_length(key: str) -> Call:
    return lambda redis: redis.llen(key)


def _ask_head(key: str) -> Call:
    return lambda redis: redis.lrange(key, 0, MOST_WAITING - 1)


def _ask_attempt(job_id: str) -> Call:
    return lambda redis: redis.hmget(JOB_KEY.format(job_id=job_id), "h3_claimed_ms", "h3_cancel", "h3_kept")


def _ended(job: ListedJob) -> datetime:
    return job.ended_at or _EPOCH


_EPOCH = datetime.fromtimestamp(0, UTC)
