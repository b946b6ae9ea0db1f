"""What a reconciler does, each with its reason: the lines of its log, and of a dry run."""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.guards import Move
from infra.placement import Place
from infra.reconciler.machine import Machine
from infra.reconciler.memory import Memory
from jobs.plain_text import plain


@dataclass(frozen=True, slots=True)
class Settle:
    """A row is brought up to date by what is listed."""

    move: Move

    def describe(self) -> str:
        return f"note     {self.move.row.name} is {self.move.state}: {self.move.cause}"


@dataclass(frozen=True, slots=True)
class Order:
    """One pod more, at the first of these places that gives it."""

    places: Sequence[Place]
    usd_per_hour: float
    why: str

    def describe(self) -> str:
        places = ", then ".join(place.data_center for place in self.places)
        return f"order    one pod in {places}, {self.usd_per_hour:.2f} USD per hour: {self.why}"


@dataclass(frozen=True, slots=True)
class Drain:
    """Let it take no job any more."""

    machine: Machine
    why: str

    def describe(self) -> str:
        return f"drain    {self.machine.describe()}: {self.why}"


@dataclass(frozen=True, slots=True)
class Undrain:
    """Let it take jobs again."""

    machine: Machine
    why: str

    def describe(self) -> str:
        return f"undrain  {self.machine.describe()}: {self.why}"


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Let its worker hand its job back with the checkpoint, and leave."""

    machine: Machine
    why: str

    def describe(self) -> str:
        return f"give     {self.machine.describe()} hands job {self.machine.job} back: {self.why}"


@dataclass(frozen=True, slots=True)
class End:
    """Terminate a pod."""

    pod_id: str
    name: str
    why: str
    is_busy: bool = False
    is_failure: bool = False  # somebody may want to know what it wrote

    def describe(self) -> str:
        return f"end      {self.name} ({self.pod_id}): {self.why}"


@dataclass(frozen=True, slots=True)
class Hold:
    """More are wanted, and none is ordered at this look."""

    why: str

    def describe(self) -> str:
        return f"hold     {plain(self.why)}"


@dataclass(frozen=True, slots=True)
class Alert:
    """A person should look at this."""

    text: str

    def describe(self) -> str:
        return f"alert    {plain(self.text)}"


Decision = Settle | Order | Hold | Drain | Undrain | GiveBack | End | Alert


@dataclass(frozen=True, slots=True)
class Plan:
    """What one situation gives reason for."""

    wanted: int
    have: int
    left: int  # pods that are not gone and are ours to end, those that drain or end among them
    jobs: int  # that wait or run
    why: str
    is_spent: bool  # the campaign's budget
    is_going_down: bool  # by a person's word
    decisions: Sequence[Decision]
    memory: Memory  # with what was learned by looking

    def to_lines(self) -> list[str]:
        return [f"want     {self.wanted}, have {self.have}: {self.why}", *(one.describe() for one in self.decisions)]
