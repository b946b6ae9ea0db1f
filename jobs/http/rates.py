"""How often each token may ask, and submit. Counted by each service process by itself."""

import math
import time

from limits import RateLimitItem
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from jobs.http.refusals import Refusal


class Rates:
    """Counts what callers do; whoever has no token is not counted."""

    def __init__(self, requests: RateLimitItem, submits: RateLimitItem) -> None:
        self._requests, self._submits = requests, submits
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def count_request(self, caller: str) -> None:
        """Raises Refusal."""
        await self._count(self._requests, "requests", caller)

    async def count_submit(self, caller: str) -> None:
        """Raises Refusal."""
        await self._count(self._submits, "submits", caller)

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
