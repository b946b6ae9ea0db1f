"""What measuring a row gives, and how much is to be measured: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Measured:
    """Not yet judged."""

    figures: tuple[float, ...] = ()  # in the row's unit; one per repetition
    claims: Mapping[str, bool] = field(default_factory=dict)  # what must be true besides
    details: Mapping[str, object] = field(default_factory=dict)  # for the report
    error: str = ""  # why it could not be measured


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured."""

    enqueue_jobs: int
    empty_jobs: int
    render_s: float
    idle_s: float
    follow_s: float
    records: int
    many_jobs: int
