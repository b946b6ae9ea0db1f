"""How often each token may ask, and submit. Counted by each service process by itself."""

import math
import time
from collections import Counter

from limits import RateLimitItem
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from jobs.http.refusals import Refusal

STREAM_ENDS_S = "10"  # or so


class Rates:
    """Counts what callers do; whoever has no token is not counted."""

    def __init__(self, requests: RateLimitItem, submits: RateLimitItem, most_streams: int) -> None:
        self._requests, self._submits = requests, submits
        self._most_streams = most_streams
        self._streams: Counter[str] = Counter()
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def count_request(self, caller: str) -> None:
        """Raises Refusal."""
        await self._count(self._requests, "requests", caller)

    async def count_submit(self, caller: str) -> None:
        """Raises Refusal."""
        await self._count(self._submits, "submits", caller)

    def take_stream(self, caller: str) -> None:
        """Count an event stream, until `leave_stream`. Raises Refusal if the caller has as many as they may."""
        if caller and self._streams[caller] >= self._most_streams:
            raise Refusal(
                429,
                "too_many_streams",
                f"{caller} follows {self._most_streams} event streams, and may follow no more: end one",
                {"Retry-After": STREAM_ENDS_S},
            )
        self._streams[caller] += 1

    def leave_stream(self, caller: str) -> None:
        self._streams[caller] -= 1

    async def _count(self, limit: RateLimitItem, what: str, caller: str) -> None:
        if not caller or await self._limiter.hit(limit, what, caller):
            return
        window = await self._limiter.get_window_stats(limit, what, caller)
        wait_s = max(1, math.ceil(window.reset_time - time.time()))
        raise Refusal(
            429,
            "rate_limit_exceeded",
            f"more {what} than {limit} by {caller}: go on in {wait_s} s",
            {"Retry-After": str(wait_s)},
        )
