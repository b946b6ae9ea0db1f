"""What client and worker agree on about the queue: names, the one job function, and how long records stay."""

from enum import StrEnum
from typing import TYPE_CHECKING

from redis import Redis

if TYPE_CHECKING:
    from rq import Queue

# Resolved by name in the worker, which runs nothing else.
JOB_FUNCTION = "worker.rq_worker.render"
RECORD_TTL_S = 30 * 24 * 3600  # of finished and of failed jobs
NO_TIMEOUT = -1  # RQ's own timeout cannot interrupt a collective; limits are ours


class QueueName(StrEnum):
    """In the order in which a worker serves them."""

    HIGH = "high"
    DEFAULT = "default"
    BATCH = "batch"


def open_queue(name: str, redis: Redis) -> "Queue":
    """RQ's queue of that name, which carries JSON."""
    from rq import Queue  # here, because clients import this file and send their jobs another way
    from rq.serializers import JSONSerializer

    return Queue(name, connection=redis, serializer=JSONSerializer)
