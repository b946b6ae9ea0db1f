"""Pods, stock and bills as lines and as JSON. Nothing of a pod's `env` is shown."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from infra.answers import DataCenter, GpuType, LogLine, Pod, PodBilling
from infra.ledger import OPEN, Row
from infra.order import MIN_CUDA, Cloud
from infra.pod_names import is_ours
from jobs.in_words import say_duration, say_time
from jobs.plain_text import plain

# --- catalog


def describe_stock(
    gpus: Sequence[GpuType], centers: Sequence[DataCenter], count: int, cloud: Cloud, read_at: datetime
) -> Iterator[str]:
    """A line for each type, and one for each data center that has some."""
    volumes = {center.id: center.network_volume_types for center in centers}
    for gpu in gpus:
        yield _describe_gpu(gpu, count, cloud)
        for place in gpu.places:
            kinds = volumes.get(place.id, ())
            told = f"network volumes: {', '.join(kinds)}" if kinds else "no network volumes"
            yield plain(f"  {place.id:<10} {place.availability:<7} {told}")
        if not gpu.places:
            yield f"  nowhere as {count} on one machine"
    yield (
        f"stock of machines with {count} GPUs and CUDA {MIN_CUDA} or newer, read at {say_time(read_at)}: a hint, no "
        "reservation"
    )


def _describe_gpu(gpu: GpuType, count: int, cloud: Cloud) -> str:
    each, largest = _of_cloud(gpu, cloud)
    free = ", ".join(cuda.version for cuda in gpu.cuda_versions if cuda.available) or "not told"
    price = f"{count} x {each:.2f} = {count * each:.2f} USD per hour" if each > 0 else "no price"
    return plain(f"{gpu.id}  {gpu.memory} GB  {price}  at most {largest} on a machine  CUDA that is free: {free}")


def _of_cloud(gpu: GpuType, cloud: Cloud) -> tuple[float, int]:
    if cloud == "SECURE":
        return gpu.price.secure, gpu.max_count.secure
    return gpu.price.community, gpu.max_count.community


def stock_to_dicts(
    gpus: Sequence[GpuType], centers: Sequence[DataCenter], count: int, cloud: Cloud, read_at: datetime
) -> list[dict[str, object]]:
    """The same, a dictionary for each type."""
    volumes = {center.id: list(center.network_volume_types) for center in centers}
    return [
        {
            "gpu": gpu.id,
            "memory_gb": gpu.memory,
            "count": count,
            "usd_per_hour": round(count * _of_cloud(gpu, cloud)[0], 6),
            "most_on_a_machine": _of_cloud(gpu, cloud)[1],
            "cuda_free": [cuda.version for cuda in gpu.cuda_versions if cuda.available],
            "places": [
                {"data_center": place.id, "availability": place.availability, "volumes": volumes.get(place.id, [])}
                for place in gpu.places
            ],
            "read_at": read_at.isoformat(timespec="seconds"),
        }
        for gpu in gpus
    ]


# --- pods


def describe_pod(pod: Pod, now: datetime) -> list[str]:
    """One pod in full."""
    lines = [
        f"{pod.id}  {plain(pod.name)}",
        f"status    {plain(pod.status)}{', up' if pod.is_up else ''}",
        f"gpu       {_say_gpu(pod)}",
        plain(f"place     {pod.data_center_id or 'not told yet'}, {pod.cloud}, CUDA {pod.cuda_version or '?'}"),
        f"cost      {pod.cost:.2f} USD per hour, {say_duration(pod.age_s(now))} old",
        f"storage   {_say_mounts(pod)}",
    ]
    if (ssh := pod.ssh.direct) is not None:
        lines.append(plain(f"ssh       ssh {ssh.username}@{ssh.host} -p {ssh.port}"))
    return lines


def describe_pods(pods: Iterable[Pod], rows: Iterable[Row], prefix: str, now: datetime) -> Iterator[str]:
    """A line for each pod of the account, and one for each order that may still have one."""
    pods = list(pods)
    for pod in pods:
        mark = "" if is_ours(pod.name, prefix) else "  (foreign)"
        place = f"{plain(pod.data_center_id or '?'):<10} {_say_gpu(pod)}"
        yield _align(pod.id, plain(pod.status), pod.cost, pod.age_s(now), f"{place}  {plain(pod.name)}{mark}")
    listed = {pod.name for pod in pods}
    for row in rows:
        if row.state in OPEN and row.name not in listed:
            yield _align("?", row.state, row.usd_per_hour, row.age_s(now), f"{row.data_center:<10} {row.name}")


def _align(pod_id: str, state: str, usd_per_hour: float, age_s: float, rest: str) -> str:
    return f"{pod_id:<16} {state:<12} {usd_per_hour:>7.2f} USD/h  {say_duration(age_s):<12} {rest}"


def say_spend(pods: Sequence[Pod], prefix: str) -> str:
    ours = sum(pod.cost for pod in pods if is_ours(pod.name, prefix))
    return f"ours {ours:.2f} USD per hour, the whole account {sum(pod.cost for pod in pods):.2f}"


def pod_to_dict(pod: Pod) -> dict[str, object]:
    return pod.model_dump(mode="json")


def _say_gpu(pod: Pod) -> str:
    return f"{pod.gpu.count} x {plain(pod.gpu.id)}" if pod.gpu is not None else "no GPU"


def _say_mounts(pod: Pod) -> str:
    host = pod.mounts.persistent
    parts = [f"{host.size} GB at {host.path}, until it is terminated"] if host is not None else []
    parts += [f"network volume {mount.volume_id} at {mount.path}, kept" for mount in pod.mounts.network]
    return plain("; ".join(parts) or "none that outlives a restart")


# --- logs and bills


def describe_line(line: LogLine) -> str:
    return plain(f"{line.ts.isoformat(timespec='seconds')} {line.source:<9} {line.line}")


def describe_billing(billing: PodBilling, hours: int) -> Iterator[str]:
    """What each pod has cost in so many hours, and all of them."""
    amounts: dict[str, list[float]] = {}
    for record in billing.records:
        total, gpu, disk = amounts.get(record.pod_id, [0.0, 0.0, 0.0])
        amounts[record.pod_id] = [
            total + record.total_amount,
            gpu + record.gpu_amount,
            disk + record.disk_amount,
        ]
    totals = billing.metadata.totals
    amounts["together"] = [totals.total_amount, totals.gpu_amount, totals.disk_amount]
    for name, (total, gpu, disk) in amounts.items():
        yield f"{plain(name):<16} {total:>9.2f} USD  (GPUs {gpu:.2f}, disks {disk:.2f})"
    yield f"of the last {hours} hours; the last one may not be billed yet"
