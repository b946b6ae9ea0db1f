"""Simulated time: it passes when somebody waits, and what is due meanwhile happens at its moment."""

import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from infra.clock import Clock

BEGIN = datetime(2026, 11, 30, 20, tzinfo=UTC)  # a night crosses midnight, where the books turn a page
HOUR_S = 3600.0

Happening = Callable[[], object]


class Timeline:
    """Seconds since the evening began."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Happening]] = []
        self._order = itertools.count()  # of what happens at one moment

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.now_s)

    @property
    def next_s(self) -> float:
        """When something happens next."""
        return self._due[0][0] if self._due else float("inf")

    def after(self, seconds: float, happening: Happening) -> None:
        heapq.heappush(self._due, (self.now_s + seconds, next(self._order), happening))

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.next_s <= end_s:
            self.now_s, _, happening = heapq.heappop(self._due)
            happening()
        self.now_s = end_s

    def make_clock(self, chance: Callable[[], float]) -> Clock:
        return Clock(lambda: self.now, lambda: self.now_s, self.advance, chance)


def to_seconds(when: datetime) -> float:
    """Of a time that a row or a body names."""
    return (when - BEGIN).total_seconds()
