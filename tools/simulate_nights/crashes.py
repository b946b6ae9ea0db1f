"""Where a reconciler dies: on either side of every call that leaves something behind."""

from dataclasses import dataclass
from random import Random

from tools.simulate_nights.nights import FAULTS_END_S, Night
from tools.simulate_nights.rates import Rates
from tools.simulate_nights.timeline import Timeline


class Crash(BaseException):
    """As by kill -9: nothing of ours catches it."""


@dataclass(slots=True)
class Saboteur:
    """Draws crashes, and counts them by the place where they struck."""

    rates: Rates
    random: Random
    timeline: Timeline
    crashes: dict[str, int]

    @classmethod
    def of(cls, night: Night, timeline: Timeline) -> "Saboteur":
        return cls(night.rates, night.random("crashes"), timeline, {})

    def strike(self, where: str, share: float | None = None) -> None:
        """Perhaps. Raises Crash."""
        share = self.rates.crash if share is None else share
        if self.random.random() < share and self.timeline.now_s < FAULTS_END_S:
            self.crashes[where] = self.crashes.get(where, 0) + 1
            raise Crash(where)

    def draw_pause_s(self) -> float:
        """Until a supervisor has it running again."""
        if self.random.random() < self.rates.long_down:
            return self.rates.long_down_s
        return self.random.uniform(*self.rates.down_s)
