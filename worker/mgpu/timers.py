"""Named one-shot timers for a selector loop: the loop sleeps until the nearest and runs those that are due."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_SLEEP_S = 86_400.0  # a selector takes 24 days at most, and no infinity


class Timers:
    def __init__(self) -> None:
        self._due: dict[str, tuple[float, Callable[[], None]]] = {}

    def set(self, name: str, due_at: float, action: Callable[[], None]) -> None:
        """`due_at` is a time.monotonic(). Replaces an earlier timer of that name."""
        self._due[name] = (due_at, action)

    def set_sooner(self, name: str, due_at: float, action: Callable[[], None]) -> None:
        """The same, unless the earlier one is due before."""
        if name not in self._due or due_at < self._due[name][0]:
            self.set(name, due_at, action)

    def cancel(self, *names: str) -> None:
        for name in names:
            self._due.pop(name, None)

    def clear(self) -> None:
        self._due.clear()

    def seconds_to_next(self) -> float | None:
        if not self._due:
            return None
        nearest_s = min(due_at for due_at, _ in self._due.values()) - time.monotonic()
        return min(max(0.0, nearest_s), _LONGEST_SLEEP_S)

    def run_due(self) -> None:
        now = time.monotonic()
        for name, (due_at, action) in sorted(self._due.items(), key=lambda timer: timer[1][0]):
            if due_at <= now and self._due.get(name) == (due_at, action):  # not replaced by another action
                del self._due[name]
                action()
