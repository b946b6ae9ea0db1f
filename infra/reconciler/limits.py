"""What a person allows a reconciler to do, and how patient it is."""

import math
from dataclasses import dataclass
from typing import Self

from infra.errors import GuardRefused

RAISE_EVERY_S, SURPLUS_S, IDLE_S, BOOT_S = 60.0, 300.0, 300.0, 600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one fleet of pods. Times are in seconds, money in USD."""

    least: int  # pods, while nothing waits
    most: int
    usd_per_hour: float  # of all our pods together
    usd_total: float  # of the campaign, from its first pod to its last
    horizon_s: float = 900.0  # within which what waits is to be rendered
    step_up: int = 2  # pods more at a time
    raise_every_s: float = RAISE_EVERY_S
    surplus_s: float = SURPLUS_S  # for which there are too many before one goes
    idle_s: float = IDLE_S  # of a pod that goes; more where a start takes longer
    boot_s: float = BOOT_S  # from create to the first heartbeat, until some were measured
    max_hours: float = 6.0  # of one pod
    until_done: bool = False  # no pod is kept, not even the least, once no job is left
    data_centers: tuple[str, ...] = ()  # none: any that has stock

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise GuardRefused(f"--min {self.least} --max {self.most}: 0 <= min <= max is needed")
        if self.usd_per_hour <= 0 or self.usd_total <= 0:
            raise GuardRefused("--budget-per-hour and --budget-total are amounts of USD above 0")

    @classmethod
    def of_none(cls) -> Self:
        """No pod at all, and no budget that would cut off what is on its way out."""
        return cls(least=0, most=0, usd_per_hour=math.inf, usd_total=math.inf)
