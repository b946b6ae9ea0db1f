"""Which notices this service delivers, among all services of one Redis. Each call is one of webhooks.lua."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from jobs.canceled import heeding_cancel
from jobs.connection import redis_errors

NOTED_KEY = "h3:webhooks"  # where lease.lua notes the ends of jobs
MOST_OF_A_HOST = 4  # at once, by one service
_SCRIPT = Path(__file__).with_name("webhooks.lua").read_text()
_BLOCK_MS = 1000
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Delivery:
    """A notice that is this service's to deliver, for the time of a lease."""

    entry: str  # its id in the stream, which begins with the time of the job's end
    job_id: str
    url: str
    host: bytes  # by which turns are shared
    outcome: str  # how the job ended then; it may have been retried or deleted since
    failures: int  # tries before this one
    until_ms: str  # end of the lease: no other claim has the same

    @property
    def ended_s(self) -> int:
        return int(self.entry.partition("-")[0]) // 1000


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a look for work gave."""

    deliveries: tuple[Delivery, ...]
    wait_s: float  # until another is due, infinite if none is known of
    has_more: bool  # that is noted, and has not been looked at
    dropped: tuple[str, ...]  # jobs of notices that were a day old, or too many of one host


class DueNotices:
    """Every method raises RedisUnavailable."""

    def __init__(self, redis: Redis, lease_s: float) -> None:
        self._redis = redis
        self._script = redis.register_script(_SCRIPT)
        self._lease_s = lease_s
        self._seen = b"0-0"

    async def claim(self, most: int, busy: Mapping[bytes, int]) -> Claimed:
        """Take what is due, with regard to how many of each host this service is at."""
        counts = [part for pair in busy.items() for part in pair]
        found, wait_ms, has_more, dropped = await self._call("claim", _ms(self._lease_s), most, MOST_OF_A_HOST, *counts)
        wait_s = math.inf if wait_ms < 0 else wait_ms / 1000
        return Claimed(tuple(map(_read, found)), wait_s, bool(has_more), tuple(map(_text, dropped)))

    async def done(self, delivery: Delivery) -> None:
        """It is delivered, or given up."""
        await self._call("done", delivery.entry)

    async def again(self, delivery: Delivery, after_s: float, *, is_counted: bool) -> None:
        """Try it again later; in vain if the lease is over and another has it."""
        await self._call("again", delivery.entry, delivery.until_ms, _ms(after_s), int(is_counted))

    async def await_noted(self) -> bool:
        """Wait about a second for a job to end; whether one has."""
        replies: Any
        with _calling():
            replies = await self._redis.xread({NOTED_KEY: self._seen}, count=_PAGE, block=_BLOCK_MS)
        if not replies:
            return False
        [pages] = replies.values() if isinstance(replies, dict) else ([page for _, page in replies],)  # RESP3, RESP2
        self._seen = pages[-1][-1][0]
        return True

    async def _call(self, command: str, *arguments: str | bytes | int) -> Any:
        with _calling():
            return await self._script(args=[command, *arguments])


@contextmanager
def _calling() -> Iterator[None]:
    with redis_errors(), heeding_cancel():
        yield


def _read(found: list[bytes]) -> Delivery:
    entry, job_id, url, host, outcome, failures, until_ms = found
    return Delivery(entry.decode(), _text(job_id), _text(url), host, _text(outcome), int(failures), until_ms.decode())


def _text(raw: bytes) -> str:
    """Whoever can write to Redis need not keep to UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
