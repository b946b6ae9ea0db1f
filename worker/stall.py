"""How long a healthy fleet may be silent, and how long a phase may take. Knows no clock: the time is an argument."""

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
    denoise_s: float = 4 * 3600.0  # all steps of an attempt, its text included
    decode_s: float = 3600.0  # all clips


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
    _phase_began: float | None = None  # until it goes on

    def begin(self, shape: Shape, now: float) -> None:
        self._shape, self._awaited, self._since, self._phase_began = shape, "step", now, now

    def saw(self, item: Item) -> None:
        """Note what was yielded, and pause."""
        self._since = None
        match item:
            case items.StepDone(step, steps, _, seconds):
                self._steps[self._shape] = [*self._steps[self._shape], seconds][-MOST_REMEMBERED:]
                self._await("step" if step < steps else "clip")
            case items.StreamHeader() | items.Segment():
                self._await("clip")

    def _await(self, awaited: str) -> None:
        if awaited != self._awaited:
            self._phase_began = None
        self._awaited = awaited

    def expect(self, now: float) -> None:
        """The fleet goes on from here."""
        if self._phase_began is None:
            self._phase_began = now
        self._since = now

    def pause(self) -> None:
        self._since = None

    def overdue(self, now: float) -> str:
        """What is overdue, in words; empty if nothing is."""
        since, awaited, limit_s = self._since, self._awaited, self.limit_s
        phase_s, phase_limit_s = now - (self._phase_began or now), self._phase_limit_s
        # Asked from another thread: an item that was seen meanwhile has its own limit, and began anew.
        if since is None or since != self._since:
            return ""
        if now - since > limit_s:
            return f"no {awaited} for {now - since:.0f} s (limit {limit_s:g} s)"
        if phase_s > phase_limit_s:
            return f"its {awaited}s have taken {phase_s:.0f} s (limit {phase_limit_s:g} s)"
        return ""

    def step_left_s(self, now: float) -> float | None:
        """What the step under way will still take, by the median of the shape's; None if there is no telling."""
        since, steps = self._since, self._steps.get(self._shape)
        if since is None or self._awaited != "step" or not steps:
            return None
        return max(0.0, since + median(steps) - now)

    @property
    def _phase_limit_s(self) -> float:
        return self.limits.denoise_s if self._awaited == "step" else self.limits.decode_s

    @property
    def limit_s(self) -> float:
        """Of what is awaited now."""
        if self._awaited == "clip":
            return self.limits.clip_s
        if not (steps := self._steps.get(self._shape)):
            return self.limits.first_step_s
        return max(self.limits.step_s, STEP_FACTOR * median(steps))
