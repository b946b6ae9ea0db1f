"""All that one look has seen: what plan() decides by."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from infra.answers import Pod
from infra.guards import Move
from infra.placement import Place
from infra.reconciler.limits import Limits
from infra.reconciler.machine import COUNTED, SERVING, Machine, Stage
from infra.reconciler.memory import Memory

END_S = 120.0  # from the wish that a pod ends to the last second that is billed


@dataclass(frozen=True, slots=True)
class Work:
    """What the queue has for pods like ours, in seconds of one pod."""

    seconds: float = 0.0  # of what waits and of what is left of what runs
    waiting: int = 0  # jobs
    running: int = 0
    p75_s: float = 600.0  # of one job
    p99_s: float = 1200.0

    @property
    def jobs(self) -> int:
        return self.waiting + self.running


@dataclass(frozen=True, slots=True)
class Situation:
    """At one moment. Nothing in it is read again while it is judged."""

    now: datetime
    limits: Limits
    machines: Sequence[Machine]  # of every order that is not closed
    work: Work
    spent_usd: float  # of the campaign, by now
    memory: Memory = field(default_factory=Memory)
    moves: Sequence[Move] = ()  # of rows, by the list of pods
    strays: Sequence[Pod] = ()  # pods of ours that no row tells of
    born_at: datetime | None = None  # of the ledger
    places: Sequence[Place] = ()  # where the catalog has stock, most first
    usd_per_hour: float = 0.0  # of one more pod; 0: the catalog has no price
    is_going_down: bool = False  # a person wants no pod any more

    @property
    def is_done(self) -> bool:
        """Nobody waits for more work."""
        return self.limits.until_done and self.work.jobs == 0

    # --- counts

    @property
    def counted(self) -> list[Machine]:
        """Those that there are to be, also while they start."""
        return self.in_stage(*COUNTED)

    @property
    def serving(self) -> list[Machine]:
        return self.in_stage(*SERVING)

    def in_stage(self, *stages: Stage) -> list[Machine]:
        return [machine for machine in self.machines if machine.stage in stages]

    # --- money

    @property
    def committed_usd_per_hour(self) -> float:
        """Of all that bills or may, strays too."""
        return sum(machine.usd_per_hour for machine in self.machines) + sum(pod.cost for pod in self.strays)

    @property
    def reserve_usd(self) -> float:
        """What it takes to finish that which runs, and to end all pods."""
        busy = [machine for machine in self.machines if machine.job is not None]
        finish = sum(machine.usd_per_hour for machine in busy) * self.work.p99_s
        return (finish + self.committed_usd_per_hour * END_S) / 3600

    @property
    def left_usd(self) -> float:
        return self.limits.usd_total - self.spent_usd

    # --- time

    @property
    def boot_s(self) -> float:
        return self.memory.boot_s(self.limits.boot_s)
