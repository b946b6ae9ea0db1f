"""What is to be done later, each at most once. Time is an argument, so it waits for nothing itself."""

from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions, and when each is due by a monotonic clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._due: dict[Action, float] = {}

    def put(self, action: Action, after_s: float) -> None:
        """In place of the time that it was due before."""
        self._due[action] = self._monotonic() + after_s

    def drop(self, action: Action) -> None:
        self._due.pop(action, None)

    def do_due(self) -> None:
        """Those whose time has come, in its order."""
        while self._due and self._due[action := min(self._due, key=self._due.__getitem__)] <= self._monotonic():
            del self._due[action]
            action()

    @property
    def pause_s(self) -> float | None:
        """Until the next one; None if there is none."""
        return max(0.0, min(self._due.values()) - self._monotonic()) if self._due else None
