"""One pod: its life is a list of phases, some of them in the future, so that its state is a function of the time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tests.infra.runpod.catalog import Host


class Status(StrEnum):
    """As in the document."""

    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"  # holds no GPU; its disk is billed
    ERROR = "ERROR"  # holds its GPUs
    TERMINATED = "TERMINATED"  # by a request, or vanished


ACTIONS = {
    Status.PROVISIONING: ("stop", "terminate"),
    Status.STARTING: ("stop", "terminate"),
    Status.RUNNING: ("stop", "restart", "terminate"),
    Status.EXITED: ("start", "terminate"),
    Status.ERROR: ("start", "terminate"),
    Status.TERMINATED: (),
}
WITHOUT_GPUS = (Status.EXITED, Status.TERMINATED)


@dataclass(frozen=True, slots=True)
class Course:
    """What becomes of a pod if nobody interferes. `math.inf`: it never gets so far."""

    placed_s: float = 0.0  # until it has a data center
    provisioning_s: float = 20.0
    starting_s: float = 60.0
    runtime_s: float = 2.0  # of RUNNING, until `runtime` has content
    ports_s: float = 10.0  # of RUNNING, until it has public ports
    ends_as: Status | None = None  # EXITED or ERROR: it died. TERMINATED: it vanished
    ends_s: float = math.inf  # after the request
    cost_factor: float = 1.0  # of the catalog's price
    differs: Mapping[str, object] = field(default_factory=dict)  # fields of the pod that aren't as asked


QUICK = Course(provisioning_s=0.05, starting_s=0.1, runtime_s=0.02, ports_s=0.05)  # for the real clock


@dataclass(frozen=True, slots=True)
class Phase:
    status: Status
    since: float


@dataclass(slots=True)
class Pod:
    """`settings`: what was asked for, as the document's CreatePodRequest, and what PATCH changed since."""

    id: str
    number: int  # in order of creation
    settings: dict
    host: Host
    hourly_usd: float
    created_at: float
    course: Course
    cluster: str | None = None
    resets: int = 0
    phases: list[Phase] = field(default_factory=list)
    stale_until: float = -math.inf  # shown as before its end
    reported: int = 0  # phases that `World.settle` told of

    def __post_init__(self) -> None:
        self.begin(self.created_at)

    @property
    def gpu_count(self) -> int:
        return self.settings["gpu"].get("count", 1)

    def phase(self, now: float) -> Phase:
        return next(phase for phase in reversed(self.phases) if phase.since <= now)

    def status(self, now: float) -> Status:
        return self.phase(now).status

    def shown_phase(self, now: float) -> Phase:
        """What a reader sees, who may see it late."""
        phase = self.phase(now)
        return self.phases[-2] if phase.status is Status.TERMINATED and now < self.stale_until else phase

    def holds_gpus(self, now: float) -> bool:
        return self.status(now) not in WITHOUT_GPUS

    def cost_usd(self, status: Status) -> float:
        """An hour."""
        return 0.0 if status in WITHOUT_GPUS else round(self.hourly_usd, 4)

    def started_at(self, now: float) -> float | None:
        return next((phase.since for phase in reversed(self._past(now)) if phase.status is Status.RUNNING), None)

    def begin(self, now: float) -> None:
        """From the start, or from EXITED."""
        starting = now + self.course.provisioning_s
        self._go_on(
            Phase(Status.PROVISIONING, now),
            Phase(Status.STARTING, starting),
            Phase(Status.RUNNING, starting + self.course.starting_s),
        )

    def restart(self, now: float) -> None:
        self.resets += 1
        self._go_on(Phase(Status.STARTING, now), Phase(Status.RUNNING, now + self.course.starting_s))

    def end(self, status: Status, now: float) -> None:
        self.phases = [*self._past(now), Phase(status, now)]

    def spans(self, until: float) -> list[tuple[Status, float, float]]:
        """How long it was what. None before it was created."""
        past = self._past(until)
        ends = [*(phase.since for phase in past[1:]), until]
        return [(phase.status, phase.since, end) for phase, end in zip(past, ends, strict=False)]

    def _past(self, now: float) -> list[Phase]:
        return [phase for phase in self.phases if phase.since <= now]

    def _go_on(self, *phases: Phase) -> None:
        """Until the end that the course has for it, if that is still to come."""
        now = phases[0].since
        ends_at = self.created_at + self.course.ends_s
        if self.course.ends_as is None or ends_at <= now:
            ends_at = math.inf
        self.phases = [*self._past(now), *(phase for phase in phases if phase.since < ends_at)]
        if ends_at < math.inf:
            self.phases.append(Phase(self.course.ends_as, ends_at))
