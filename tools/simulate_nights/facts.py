"""What is written down while a night goes on: the truth, and what the reconciler made of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.simulate_nights.cloud import RentedPod
from tools.simulate_nights.nights import Job


@dataclass(frozen=True, slots=True)
class EndAsked:
    """The first DELETE of one pod, as things were just then."""

    at_s: float
    pod: RentedPod
    was_busy: bool
    idle: Sequence[str]  # pods that could have gone instead
    is_lease_over: bool
    is_budget_spent: bool  # but for what it takes to finish what runs


@dataclass(frozen=True, slots=True)
class Look:
    """One that came to its end."""

    at_s: float  # of its list of pods
    usd: float  # that all pods had truly cost by then
    counted_usd: float  # by the reconciler
    is_spent: bool
    jobs_told: int  # by its plan
    jobs_left: int  # in truth
    reason: str  # that it gives for not ordering more pods; empty if it gives none
    is_served: bool  # pods work or start, or one is ordered or taken back from its drain


@dataclass(slots=True)
class Facts:
    """Of one night."""

    usd_total: float
    usd_per_hour: float
    pods: Sequence[RentedPod] = ()
    jobs: Sequence[Job] = ()
    ends: list[EndAsked] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    usd: float = 0.0  # in the end
    end_s: float = 0.0
    crashes: dict[str, int] = field(default_factory=dict)  # by where they struck
    idle_s: float = 0.0  # that were paid for, of workers that could have rendered
    used: frozenset[str] = frozenset()  # names of pods that have rendered
    starved_s: float = 0.0  # in which jobs waited, and there was no pod
