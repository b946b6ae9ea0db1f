"""What a create or a terminate would do, as data and as the lines that a person reads before saying `--yes`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from infra.answers import NetworkVolume, Pod
from infra.busy import Busyness
from infra.clock import Clock
from infra.errors import GuardRefused, NotFound
from infra.guards import IN_FLIGHT_S, check_cap, find_moves, sum_committed
from infra.ledger import OrderBook, Row
from infra.order import PodBody, PodOrder, VolumeMount, Workspace
from infra.placement import Place, check_count, choose_data_center, choose_places, find_gpu, price_machine
from infra.pod_names import is_ours
from infra.runpod import RunPod
from jobs.in_words import say_duration, say_time
from jobs.plain_text import plain

PLACEHOLDER = "TOKEN"  # in a plan's body: each try has a token of its own


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """An order that every check has passed, and where it is tried."""

    order: PodOrder
    places: Sequence[Place]
    usd_per_hour: float  # of the machine, by the catalog
    committed: float  # USD per hour of our other pods
    cap: float
    lease_until: datetime
    read_at: datetime  # of stock and price

    @property
    def body(self) -> PodBody:
        """That would be sent first."""
        return self.order.to_body(self.places[0].data_center, PLACEHOLDER, self.lease_until)

    def to_lines(self) -> list[str]:
        places = ", then ".join(f"{place.data_center} ({plain(place.availability)})" for place in self.places)
        one = self.usd_per_hour / self.order.count
        return [
            f"create    one pod with {self.order.count} x {self.order.gpu}",
            f"place     {places}",
            f"stock     read at {say_time(self.read_at)}; a hint, no reservation",
            f"price     {self.usd_per_hour:.2f} USD per hour ({one:.2f} x {self.order.count}), and its disks",
            f"cap       {self.cap:.2f} USD per hour; our other pods cost {self.committed:.2f}",
            f"lease     until {say_time(self.lease_until)}, told to the pod as LEASE_UNTIL",
            f"storage   {say_storage(self.order.storage)}",
            f"body      {json.dumps(self.body.to_shown())}",
        ]


def read_create_plan(
    api: RunPod,
    ledger: OrderBook,
    clock: Clock,
    order: PodOrder,
    *,
    data_center: str | None,
    cap: float,
    max_hours: float,
) -> CreatePlan:
    """All reads and checks that come before a create. Raises InfraError; nothing is changed but rows of the ledger."""
    gpu = find_gpu(api.list_gpus(order.count), order.gpu)
    check_count(gpu, order.count)
    price = price_machine(gpu, order.count)
    only = choose_data_center(api.list_data_centers(), data_center, read_volume(api, order))
    read_at = clock.now()
    pods = api.list_pods()
    rows = settle_rows(ledger, pods, clock.now())
    committed = sum_committed(pods, rows, order.prefix, clock.now())
    check_cap(price, committed, cap)
    plan = CreatePlan(
        order=order,
        places=choose_places(gpu, order.count, only),
        usd_per_hour=price,
        committed=committed,
        cap=cap,
        lease_until=clock.now() + timedelta(hours=max_hours),
        read_at=read_at,
    )
    _ = plan.body  # its size is one of the checks
    return plan


def settle_rows(
    ledger: OrderBook, pods: Sequence[Pod], now: datetime, *, in_flight_s: float = IN_FLIGHT_S
) -> list[Row]:
    """Every order, brought up to date by a complete list. Raises LedgerUnusable."""
    for move in find_moves(ledger.read(), pods, now, in_flight_s=in_flight_s):
        ledger.move(move.row, move.state, pod_id=move.pod_id, cause=move.cause)
    return ledger.read()


def read_volume(api: RunPod, order: PodOrder) -> NetworkVolume | None:
    if not isinstance(order.storage, VolumeMount):
        return None
    try:
        return api.get_volume(order.storage.volume_id)
    except NotFound as exc:
        raise GuardRefused(
            f"--network-volume {order.storage.volume_id}: the account has no such volume: RunPod's console lists them"
        ) from exc


# --- terminate


@dataclass(frozen=True, slots=True)
class TerminatePlan:
    """A pod that every check allows to end."""

    pod: Pod
    is_foreign: bool
    busyness: Busyness
    read_at: datetime

    def to_lines(self) -> list[str]:
        pod = self.pod
        kept = "".join(f"network volume {plain(mount.volume_id)} is kept; " for mount in pod.mounts.network)
        return [
            f"terminate {pod.id}  {plain(pod.name)}{'  (foreign)' if self.is_foreign else ''}",
            f"status    {plain(pod.status)}, {say_duration(pod.age_s(self.read_at))} old, {pod.cost:.2f} USD per hour",
            f"queue     {self.busyness.describe()}",
            f"storage   {kept}what is on the pod is destroyed",
        ]


def judge_termination(
    pod: Pod, busyness: Busyness, *, prefix: str, allow_foreign: bool, now_anyway: bool, read_at: datetime
) -> TerminatePlan:
    """Raises GuardRefused for another's pod, and for one that renders or about which the queue cannot be asked."""
    is_foreign = not is_ours(pod.name, prefix)
    if is_foreign and not allow_foreign:
        raise GuardRefused(
            f"pod {pod.id} is called {plain(pod.name)!r}, and ours begin with {prefix + '-'!r}: it may be somebody "
            "else's; --foreign terminates it all the same"
        )
    if busyness.forbids and not now_anyway:
        raise GuardRefused(
            f"pod {pod.id} ({plain(pod.name)}, {pod.cost:.2f} USD per hour): {busyness.describe()}: drain it with "
            "`h3render worker drain NAME`, or terminate it all the same with --now"
        )
    return TerminatePlan(pod, is_foreign, busyness, read_at)


# --- in words


def say_storage(storage: Workspace | VolumeMount) -> str:
    """What becomes of files, which is easily taken for more than it is."""
    if isinstance(storage, VolumeMount):
        return f"network volume {storage.volume_id} at {storage.path}: kept when the pod ends; a restart wipes all else"
    return f"{storage.size} GB at {storage.path}: survives a restart, but neither termination nor the loss of its host"
