"""How a worker leaves when it is told to: the fleet gets a grace time to stop between two steps and keep what it has.

Knows no clock and no signals: times are arguments.
"""

from dataclasses import dataclass

from worker.errors import TOLD_TO_STOP, Interrupted, PutBack, WorkerError

RESERVE_S = 10.0  # of the grace time: for the last checkpoint's upload, the job's return, the fleet's end
RESERVE_SHARE = 0.4  # of a shorter one


@dataclass(slots=True)
class Departure:
    """Told once, a worker ends its attempt in good order; told twice, at once."""

    grace_s: float
    _asked: int = 0
    _asked_at: float = 0.0

    def ask(self, now: float) -> None:
        """Safe in a signal handler."""
        self._asked_at = self._asked_at or now
        self._asked += 1

    @property
    def is_asked(self) -> bool:
        return self._asked > 0

    def is_over(self, now: float) -> bool:
        """Whether there is no time left to wait for anything."""
        return self._asked > 1 or (self.is_asked and now > self._asked_at + self.grace_s)

    def verdict(self, step_left_s: float | None, now: float) -> WorkerError | None:
        """What the running attempt is to end with by now, if this worker was told to leave.

        step_left_s  what the step (or clip) under way will still take; None if that is not known
        """
        if not self.is_asked:
            return None
        left_s = self._asked_at + self.grace_s - min(RESERVE_S, RESERVE_SHARE * self.grace_s) - now
        if self._asked > 1 or left_s <= (step_left_s or 0.0):
            return Interrupted(TOLD_TO_STOP)
        return PutBack(TOLD_TO_STOP)
