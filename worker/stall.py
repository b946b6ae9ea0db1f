"""How long a healthy fleet may be silent, by what it is doing. Knows no clock: the time is an argument."""

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from worker import items
from worker.items import Item

STEP_FACTOR = 10.0  # times the median of the shape's steps so far
MOST_REMEMBERED = 100  # steps of a shape

Shape = tuple[int, int, int]  # width, height, frames


@dataclass(frozen=True, slots=True)
class StallLimits:
    """Seconds. The limits of loading the model and of an upload are kept where those are done."""

    first_step_s: float = 600.0  # of a shape: kernels are compiled and tuned
    step_s: float = 180.0  # at least
    clip_s: float = 120.0


@dataclass(slots=True)
class StallWatch:
    """Told of each item a fleet yields, it says when the next one is overdue.

    While the worker itself is busy with an item the fleet owes nothing: `pause`, until the next `expect`.
    """

    limits: StallLimits = StallLimits()
    _steps: dict[Shape, list[float]] = field(default_factory=lambda: defaultdict(list))
    _shape: Shape = (0, 0, 0)
    _awaited: str = "step"
    _since: float | None = None

    def begin(self, shape: Shape, now: float) -> None:
        self._shape, self._awaited, self._since = shape, "step", now

    def saw(self, item: Item) -> None:
        """Note what was yielded, and pause."""
        self._since = None
        match item:
            case items.StepDone(step, steps, _, seconds):
                self._steps[self._shape] = [*self._steps[self._shape], seconds][-MOST_REMEMBERED:]
                self._awaited = "step" if step < steps else "clip"
            case items.StreamHeader() | items.Segment():
                self._awaited = "clip"

    def expect(self, now: float) -> None:
        """The fleet goes on from here."""
        self._since = now

    def pause(self) -> None:
        self._since = None

    def overdue(self, now: float) -> str:
        """What is overdue, in words; empty if nothing is."""
        since, awaited, limit_s = self._since, self._awaited, self.limit_s
        # Asked from another thread: an item that was seen meanwhile has its own limit, and began anew.
        if since is None or since != self._since or now - since <= limit_s:
            return ""
        return f"no {awaited} for {now - since:.0f} s (limit {limit_s:.0f} s)"

    @property
    def limit_s(self) -> float:
        """Of what is awaited now."""
        if self._awaited == "clip":
            return self.limits.clip_s
        if not (steps := self._steps.get(self._shape)):
            return self.limits.first_step_s
        return max(self.limits.step_s, STEP_FACTOR * median(steps))
