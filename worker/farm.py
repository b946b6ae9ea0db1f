"""What a worker sees of the farm around it, once a beat: what waits in its queues, what is put away, who works."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from redis import Redis
from redis.exceptions import ResponseError

from jobs.lease import DEAD_KEY, QUARANTINE_KEY, Leases
from jobs.queues import open_queue
from jobs.workers import WorkerState, is_queue_paused, read_workers

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of one queue."""

    jobs: int
    head_wait_s: float  # of its first job; 0 if it is paused
    is_paused: bool


@dataclass(frozen=True, slots=True)
class Farm:
    """As of the last beat; empty before the first."""

    backlogs: Mapping[str, Backlog] = field(default_factory=dict)  # by queue
    dead: int = 0
    quarantined: int = 0
    workers: Mapping[WorkerState, int] = field(default_factory=dict)


def read_farm(redis: Redis, queues: Sequence[str]) -> Farm:
    """Empty if there are keys of a wrong type, which anybody may have written. Raises RedisError if none answers."""
    try:
        return _read_farm(redis, queues)
    except ResponseError as exc:
        log.warning("the farm cannot be counted", error=str(exc))
        return Farm()


def _read_farm(redis: Redis, queues: Sequence[str]) -> Farm:
    heads = Leases(redis).peek(queues, 0, 1)
    backlogs = {
        queue: Backlog(
            jobs=open_queue(queue, redis).count,
            head_wait_s=max((waiting.waited_s for waiting in head), default=0.0),
            is_paused=is_queue_paused(redis, queue),
        )
        for queue, head in zip(queues, heads, strict=True)
    }
    workers = Counter(record.state for record in read_workers(redis))
    return Farm(backlogs, redis.zcard(DEAD_KEY), redis.hlen(QUARANTINE_KEY), workers)
