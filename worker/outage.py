"""Rides out a Redis that does not answer."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

OUTAGE_S = 900.0
# Not there (or still loading), out of reach, full, or a replica that is to become the master.
REDIS_OUTAGE = (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError, MasterDownError)
_DISK_FULL = "MISCONF"  # refuses what it could not write down; the library has no class for it
_RETRY_S = 1.0

Answer = TypeVar("Answer")

log = structlog.get_logger()


def insist(ask: Callable[[], Answer], *, unless: Callable[[], bool] = lambda: False) -> Answer:
    """Ask again while Redis does not answer, for up to OUTAGE_S: an outage must not cost a render.

    unless  asked after each failure: whether there is no time left to try again
    """
    deadline = time.monotonic() + OUTAGE_S
    while True:
        try:
            return ask()
        except RedisError as exc:
            if not is_outage(exc) or time.monotonic() > deadline or unless():
                raise
            log.warning("Redis does not answer, trying again", error=str(exc))
            time.sleep(_RETRY_S)


def is_outage(error: RedisError) -> bool:
    """Whether the same question may be answered later."""
    return isinstance(error, REDIS_OUTAGE) or str(error).startswith(_DISK_FULL)
