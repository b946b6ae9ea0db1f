"""What pods have cost, second by second, in the document's buckets of time."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.infra.runpod.clock import parse_rfc3339, rfc3339
from tests.infra.runpod.pods import Pod, Status

HOUR_S = 3600.0
MONTH_HOURS = 730.0
DISK_USD_PER_GB_MONTH = 0.10  # the container's and the volume's, while the pod has GPUs
STOPPED_VOLUME_USD_PER_GB_MONTH = 0.20
DEFAULT_WINDOW_S = 30 * 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Amounts:
    gpu_usd: float
    disk_usd: float

    def described(self) -> dict:
        total = self.gpu_usd + self.disk_usd
        return {"totalAmount": total, "gpuAmount": self.gpu_usd, "cpuAmount": 0, "diskAmount": self.disk_usd}


@dataclass(frozen=True, slots=True)
class Window:
    """On bucket boundaries. `known_until`: later spending isn't reported yet."""

    bucket_size: str
    start: float
    end: float
    known_until: float

    def buckets(self) -> Iterable[tuple[float, float]]:
        start = self.start
        while start < self.end:
            yield start, (start := bucket_end(start, self.bucket_size))


def window(query: dict, now: float, lag_s: float) -> Window:
    size = query.get("bucketSize", "day")
    if "lastN" in query:
        start, end = bucket_start(now, size), bucket_end(now, size)
        for _ in range(query["lastN"] - 1):
            start = bucket_start(start - 1, size)
    else:
        end = parse_rfc3339(query["endTime"]) if "endTime" in query else now
        start = parse_rfc3339(query["startTime"]) if "startTime" in query else end - DEFAULT_WINDOW_S
        start = bucket_start(start, size)
        end = end if bucket_start(end, size) == end else bucket_end(end, size)
    return Window(size, start, end, now - lag_s)


def report(pods: list[Pod], asked: Window, pod_id: str | None) -> dict:
    """A ListPodBillingResponse."""
    wanted = [pod for pod in pods if pod_id in (None, pod.id)]
    found = [
        (start, end, pod, amounts)
        for start, end in asked.buckets()
        for pod in wanted
        if (amounts := spent(pod, start, min(end, asked.known_until))) != Amounts(0.0, 0.0)
    ]
    query = _described_range(asked.start, asked.end) | {"bucketSize": asked.bucket_size, "podId": pod_id}
    return {
        "records": [
            _described_range(start, end) | {"podId": pod.id} | amounts.described() for start, end, pod, amounts in found
        ],
        "metadata": {
            "query": query,
            "recordCount": len(found),
            "uniquePodCount": len({pod.id for _, _, pod, _ in found}),
            "totals": _total(amounts for *_, amounts in found).described(),
        },
    }


def spent(pod: Pod, since: float, until: float) -> Amounts:
    """By one pod, between two times."""
    return _total(
        _amounts(pod, status, min(end, until) - max(start, since))
        for status, start, end in pod.spans(until)
        if min(end, until) > max(start, since)
    )


def bucket_start(seconds: float, size: str) -> float:
    moment = datetime.fromtimestamp(seconds, UTC).replace(minute=0, second=0, microsecond=0)
    match size:
        case "day":
            moment = moment.replace(hour=0)
        case "week":
            moment = moment.replace(hour=0) - timedelta(days=moment.weekday())
        case "month":
            moment = moment.replace(hour=0, day=1)
        case "year":
            moment = moment.replace(hour=0, day=1, month=1)
    return moment.timestamp()


def bucket_end(seconds: float, size: str) -> float:
    """Of the bucket that holds `seconds`."""
    start = datetime.fromtimestamp(bucket_start(seconds, size), UTC)
    # A step that surely leads into the next bucket, and not beyond it.
    step = {"hour": 1, "day": 24, "week": 7 * 24, "month": 31 * 24, "year": 366 * 24}[size]
    return bucket_start((start + timedelta(hours=step)).timestamp(), size)


def _amounts(pod: Pod, status: Status, seconds: float) -> Amounts:
    hours = seconds / HOUR_S
    return Amounts(pod.cost_usd(status) * hours, _disk_usd_per_month(pod, status) / MONTH_HOURS * hours)


def _disk_usd_per_month(pod: Pod, status: Status) -> float:
    volume_gb = pod.settings.get("mounts", {}).get("persistent", {}).get("size", 0)
    match status:
        case Status.TERMINATED:
            return 0.0
        case Status.EXITED:
            return volume_gb * STOPPED_VOLUME_USD_PER_GB_MONTH
        case _:
            return (volume_gb + pod.settings["disk"]) * DISK_USD_PER_GB_MONTH


def _total(amounts: Iterable[Amounts]) -> Amounts:
    gpu_usd = disk_usd = 0.0
    for each in amounts:
        gpu_usd, disk_usd = gpu_usd + each.gpu_usd, disk_usd + each.disk_usd
    return Amounts(gpu_usd, disk_usd)


def _described_range(start: float, end: float) -> dict:
    return {"startTime": rfc3339(start), "endTime": rfc3339(end)}
