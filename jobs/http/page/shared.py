"""What many windows ask for at once, and once a second each, is read once for all of them."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from markupsafe import Markup

from jobs.errors import RedisUnavailable

GOOD_FOR_S = 0.8  # less than a window rests between two looks
MOST_KEPT = 200  # a window of each visitor, and of each length of the gallery


@dataclass(slots=True)
class SharedLooks:
    """Of one service: parts of pages, by who may see them."""

    _kept: dict[str, tuple[float, Markup | RedisUnavailable]] = field(default_factory=dict)  # until when
    _locks: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def get(self, key: str, look: Callable[[], Awaitable[Markup]]) -> Markup:
        """What was seen less than a moment ago; else what `look` sees, for which others wait. Raises what it raises.

        That Redis does not answer is shared, too: else those who wait would find it out one after another.
        """
        async with self._locks[key]:
            kept = self._kept
            until, seen = kept.get(key, (0.0, Markup()))
            if time.monotonic() >= until:
                seen = await _try(look)
                if kept is self._kept:  # else it may have been seen before what was done meanwhile
                    self._keep(key, seen)
        if isinstance(seen, RedisUnavailable):
            raise seen.with_traceback(None)  # which would grow with each who is told
        return seen

    def forget(self) -> None:
        """Something has been done: whoever did it wants to see that."""
        self._kept = {}

    def _keep(self, key: str, seen: Markup | RedisUnavailable) -> None:
        if len(self._kept) >= MOST_KEPT:
            self.forget()
            self._locks = defaultdict(asyncio.Lock, {key: self._locks[key]})
        self._kept[key] = (time.monotonic() + GOOD_FOR_S, seen)


async def _try(look: Callable[[], Awaitable[Markup]]) -> Markup | RedisUnavailable:
    try:
        return await look()
    except RedisUnavailable as exc:
        return exc
