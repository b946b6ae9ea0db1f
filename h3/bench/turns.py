"""What contenders are asked for, and what they answer: the words between a bench and its ranks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from h3.bench.work import Part
from h3.sequence import Geometry

TEXT_TOKENS = 300

Tell = Callable[[str], object]  # progress, for a person


@dataclass(frozen=True, slots=True)
class Opening:
    """Ask for what the device does at best; answered with Ceilings."""


@dataclass(frozen=True, slots=True)
class TakeSteps:
    """Ask for steps, after one that is not counted; answered with a Turn."""

    geometry: Geometry
    steps: int
    way: str  # of computing them: ours have attention backends, a peer has its own ways


@dataclass(frozen=True, slots=True)
class WatchParts:
    """Ask how long the parts of a step take; answered with Parts."""

    geometry: Geometry
    steps: int
    way: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Steps that a contender has taken, as rank 0 saw them."""

    step_s: tuple[float, ...]
    peak_bytes: int  # of GPU memory in these steps; 0 on the CPU
    weight_bytes: int  # on this rank
    attention: str
    precision: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one step by its parts, on rank 0."""

    seconds: Mapping[Part, float]
