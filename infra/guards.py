"""Judgements about money, orders and pods: pure functions over what was read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from infra.answers import ON_THE_WAY, Pod
from infra.errors import GuardRefused
from infra.ledger import OPEN, WITH_POD, Row, RowState
from infra.order import Mounts, PodBody
from infra.pod_names import is_ours

IN_FLIGHT_S = 150.0  # within which another command may still wait for the answer to its create
UNKNOWN_S = 900.0  # after which a pod that no list has shown will not come any more
TOLERANCE = 1.05  # of a cost over the price
MICRO_USD = 6  # decimals: sums of floats are compared by these


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a row that a list of pods gives reason for."""

    row: Row
    state: RowState
    pod_id: str | None
    cause: str


def find_moves(
    rows: Iterable[Row],
    pods: Iterable[Pod],
    now: datetime,
    *,
    in_flight_s: float = IN_FLIGHT_S,
    was_listed: Callable[[str], bool] = lambda _: False,
) -> list[Move]:
    """What a complete list tells of orders: pods of lost answers, those that never came, those that are gone.

    in_flight_s  how young an order may still be another's who waits for the answer; 0 where there is no other
    was_listed  whether an earlier list had the pod of this name: a new one may be listed late, but not twice
    """
    by_name = {pod.name: pod for pod in pods if not pod.is_gone}
    moves = []
    for row in rows:
        pod, age_s = by_name.get(row.name), row.age_s(now)
        if row.state in OPEN and pod is not None and age_s >= in_flight_s:
            moves.append(Move(row, RowState.CREATED, pod.id, "found by its name"))
        elif row.state is RowState.FAILED and pod is not None:
            moves.append(Move(row, RowState.CREATED, pod.id, "it came after all"))
        elif pod is None and age_s >= UNKNOWN_S and row.state in OPEN:
            moves.append(Move(row, RowState.FAILED, None, "no list has shown a pod of this name"))
        elif pod is None and age_s >= UNKNOWN_S and row.has_pod:
            moves.append(Move(row, RowState.GONE, row.pod_id, "it is not listed any more"))
        elif pod is None and row.has_pod and was_listed(row.name):
            moves.append(Move(row, RowState.GONE, row.pod_id, "RunPod does not know it any more"))
    return moves


def sum_committed(pods: Sequence[Pod], rows: Sequence[Row], prefix: str, now: datetime) -> float:
    """USD per hour of all our pods: what is listed by its cost, what may be and is not listed yet by its price."""
    prices = {row.name: row.usd_per_hour for row in rows}
    listed = sum(find_cost(pod, prices.get(pod.name, 0.0)) for pod in pods if is_ours(pod.name, prefix))
    names = {pod.name for pod in pods}
    may_come = (*OPEN, *WITH_POD)
    unlisted = [row for row in rows if row.name not in names and row.state in may_come and row.age_s(now) < UNKNOWN_S]
    return round(listed + sum(row.usd_per_hour for row in unlisted), MICRO_USD)


def find_cost(pod: Pod, price: float) -> float:
    """Of one that is on its way at least its price: it may cost nothing yet."""
    return max(pod.cost, price) if pod.status in ON_THE_WAY else pod.cost


def check_cap(usd_per_hour: float, committed: float, cap: float) -> None:
    """Raises GuardRefused, naming what the pod costs, what runs already, and the cap."""
    if round(committed + usd_per_hour, MICRO_USD) > cap:
        raise GuardRefused(
            f"this pod costs {usd_per_hour:.2f} USD per hour and our other pods {committed:.2f}, together "
            f"{committed + usd_per_hour:.2f}; the cap is {cap:.2f}: terminate one, or raise --max-usd-per-hour or "
            "H3_PODS_MAX_USD_PER_HOUR"
        )


def find_overcharge(pod: Pod, estimate: float, committed: float, cap: float) -> list[str]:
    """Why its cost will not do; nothing if it will."""
    if excess := find_excess(pod, estimate):
        return excess
    if round(committed + pod.cost, MICRO_USD) > cap:
        return [f"with it our pods cost {committed + pod.cost:.2f} USD per hour, the cap is {cap:.2f}"]
    return []


def find_excess(pod: Pod, estimate: float) -> list[str]:
    """That it costs more than the catalog has it for, if it does."""
    if pod.cost <= round(estimate * TOLERANCE, MICRO_USD):
        return []
    return [f"it costs {pod.cost:.2f} USD per hour, by the catalog {estimate:.2f}"]


def find_differences(body: PodBody, pod: Pod) -> list[str]:
    """How a pod differs from its order, as far as RunPod tells already: the data center may be named later."""
    count, gpu = (pod.gpu.count, pod.gpu.id) if pod.gpu is not None else (0, "none")
    places = body.data_center_ids
    pairs = [
        ("gpu", body.gpu.id, gpu),
        ("gpu count", body.gpu.count, count),
        ("cloud", body.cloud, pod.cloud),
        ("data center", places[0], pod.data_center_id or places[0]),
        ("mounts", _describe_ordered(body.mounts), _describe_mounts(pod)),
    ]
    differences = [f"{what} is {came}, not {ordered}" for what, ordered, came in pairs if ordered != came]
    if pod.cuda_version is not None and _version(pod.cuda_version) < _version(body.gpu.min_cuda_version):
        differences.append(f"CUDA is {pod.cuda_version}, older than {body.gpu.min_cuda_version}")
    return differences


def _describe_ordered(mounts: Mounts) -> str:
    if mounts.persistent is not None:
        return f"{mounts.persistent.size} GB at {mounts.persistent.path}"
    return ", ".join(f"volume {mount.volume_id} at {mount.path}" for mount in mounts.network or ())


def _describe_mounts(pod: Pod) -> str:
    if pod.mounts.network:
        return ", ".join(f"volume {mount.volume_id} at {mount.path}" for mount in pod.mounts.network)
    host = pod.mounts.persistent
    return f"{host.size} GB at {host.path}" if host is not None else "none"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
