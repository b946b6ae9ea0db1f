"""A look at a controller from outside, for health pages."""

from dataclasses import dataclass

from worker.mgpu.state import Phase, State


@dataclass(frozen=True, slots=True)
class RankStatus:
    rank: int
    pid: int
    phase: Phase
    heard_s_ago: float
    yields: int  # of the job in flight


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    state: State
    job_id: int | None  # in flight
    ranks: tuple[RankStatus, ...]
