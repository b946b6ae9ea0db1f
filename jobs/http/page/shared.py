"""What many windows ask for at once, and once a second each, is read once for all of them."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from markupsafe import Markup

GOOD_FOR_S = 0.8  # less than a window rests between two looks
MOST_KEPT = 200  # a window of each visitor, and of each length of the gallery


@dataclass(slots=True)
class SharedLooks:
    """Of one service: parts of pages, by who may see them."""

    _kept: dict[str, tuple[float, Markup]] = field(default_factory=dict)  # until when
    _locks: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def get(self, key: str, look: Callable[[], Awaitable[Markup]]) -> Markup:
        """What was seen less than a moment ago; else what `look` sees, for which others wait. Raises what it raises."""
        async with self._locks[key]:
            until, seen = self._kept.get(key, (0.0, Markup()))
            if time.monotonic() >= until:
                seen = await look()
                self._keep(key, seen)
            return seen

    def forget(self) -> None:
        """Something has been done: whoever did it wants to see that."""
        self._kept.clear()

    def _keep(self, key: str, seen: Markup) -> None:
        if len(self._kept) >= MOST_KEPT:
            self.forget()
            self._locks = defaultdict(asyncio.Lock, {key: self._locks[key]})
        self._kept[key] = (time.monotonic() + GOOD_FOR_S, seen)
