"""Orders pods: what the catalog has of them, and one after the other the places that may give one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from infra.clock import Clock
from infra.create import Creator
from infra.errors import (
    AccessDenied,
    ApiError,
    BalanceTooLow,
    ContractBroken,
    GuardRefused,
    KeyRefused,
    NoCapacity,
    NotAsOrdered,
    OutcomeUnknown,
    VersionRetired,
)
from infra.ledger import OrderBook
from infra.order import PodOrder
from infra.placement import Place, find_gpu, price_machine
from infra.plan import CreatePlan
from infra.reconciler.decisions import Order
from infra.reconciler.memory import Failure, Memory
from infra.reconciler.situation import Situation
from infra.runpod import PodCalls

STOCK_KEPT_S = 60.0
STOPPING = (BalanceTooLow, KeyRefused, ContractBroken, VersionRetired)  # no create will succeed before a person acts

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stock:
    """Of machines like ours. A hint, no reservation."""

    usd_per_hour: float = 0.0  # of one machine; 0: not told, and none is ordered
    places: Sequence[Place] = ()


@dataclass(slots=True)
class Orderer:
    """Of one kind of pod."""

    api: PodCalls
    ledger: OrderBook
    clock: Clock
    order: PodOrder  # wherever it is placed
    tell: Callable[[str], None]
    _stock: Stock = field(default_factory=Stock)
    _read_at_s: float = float("-inf")

    def read_stock(self) -> Stock:
        """Of the catalog, not at every look. Without it nothing is ordered, and all else goes on."""
        if self.clock.monotonic() - self._read_at_s >= STOCK_KEPT_S:
            self._stock = self._read_stock()
            self._read_at_s = self.clock.monotonic()
        return self._stock

    def _read_stock(self) -> Stock:
        try:
            gpu = find_gpu(self.api.list_gpus(self.order.count), self.order.gpu)
            places = [Place(place.id, place.availability) for place in gpu.places]
            return Stock(price_machine(gpu, self.order.count), places)
        except (ApiError, GuardRefused) as exc:
            log.warning("the catalog does not say what a pod costs", why=str(exc))
            return Stock()

    def place(self, order: Order, situation: Situation, memory: Memory) -> Memory:
        """At the first place that has a machine; what went wrong is remembered. Raises what else a create does."""
        for place in order.places:
            try:
                pod = self._make_creator().create(self._plan(place, situation))
            except (NoCapacity, AccessDenied) as exc:
                memory = memory.note_refusal(place.data_center, str(exc), self.clock.now(), self.clock.chance())
            except STOPPING as exc:
                self.tell(f"stopped  no pod is ordered any more: {exc}")
                return memory.with_(stopped=str(exc))
            except OutcomeUnknown as exc:
                self.tell(f"unknown  {exc}")
                return memory
            except NotAsOrdered as exc:
                self.tell(f"failed   {exc}")
                return memory.note_failure(self._make_failure(place, exc))
            else:
                self.tell(f"ordered  {pod.name} ({pod.id}) in {place.data_center}, {pod.cost:.2f} USD per hour")
                return memory.note_created(place.data_center)
        self.tell("failed   no data center gave the pod")
        return memory

    def _make_creator(self) -> Creator:
        """One that leaves open what is open: later looks find out."""
        return Creator(
            self.api,
            self.ledger,
            self.clock,
            tell_pod=_pass,
            tell=_pass,
            sends=1,
            looks_s=(),
            settles_s=(),
            awaits_end=False,
        )

    def _plan(self, place: Place, situation: Situation) -> CreatePlan:
        return CreatePlan(
            order=self.order,
            places=[place],
            usd_per_hour=situation.usd_per_hour,
            committed=situation.committed_usd_per_hour,
            cap=situation.limits.usd_per_hour,
            lease_until=self.clock.now() + timedelta(hours=situation.limits.max_hours),
            read_at=situation.now,  # what this look has ordered since is counted by its rows
        )

    def _make_failure(self, place: Place, error: NotAsOrdered) -> Failure:
        return Failure(at=self.clock.now(), name=self.order.slot, data_center=place.data_center, why=str(error))


def _pass(_: str) -> None:
    """The ledger has it, and the reconciler tells it in its own words."""
