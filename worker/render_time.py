"""Notes how long renders take, for whoever decides how many machines there are to be."""

import structlog
from redis import Redis
from redis.exceptions import RedisError

from jobs.events import Finished
from jobs.lease import Lease
from jobs.render_times import RenderClass, record_render

log = structlog.get_logger()


def was_whole(lease: Lease, finished: Finished) -> bool:
    """Whether this attempt made the result alone: with an earlier one's work it took less time than its size takes."""
    return lease.kept.mark == 0 and finished.attempt == lease.attempt


def note_time(redis: Redis, measured: RenderClass, seconds: float) -> None:
    """Never fails, and is not tried again: the job has its result, and the next one waits."""
    try:
        record_render(redis, measured, seconds)
    except RedisError as exc:
        log.warning("the time of the render is not recorded", error=str(exc))
