"""The account: pods, volumes, logs and the stock that they take. Knows no HTTP; time is an argument of every call."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from tests.infra.runpod.answers import Conflict, NoCapacity, NotFound
from tests.infra.runpod.catalog import Catalog, Host
from tests.infra.runpod.logs import LogLine
from tests.infra.runpod.pods import ACTIONS, Course, Pod, Status

SYSTEM_LINES = {
    Status.PROVISIONING: "create container",
    Status.STARTING: "pull image",
    Status.RUNNING: "start container",
    Status.EXITED: "stop container",
    Status.ERROR: "error: container cannot be started",
    Status.TERMINATED: "remove container",
}


@dataclass(slots=True)
class Volume:
    id: str
    name: str
    size: int  # GB
    data_center: str
    type: str = "STANDARD"


@dataclass(frozen=True, slots=True)
class Turn:
    """A pod came into a status."""

    pod: Pod
    status: Status
    at: float


@dataclass(frozen=True, slots=True)
class Wish:
    """Where a pod may be placed."""

    gpu_id: str
    count: int = 1
    cloud: str = "SECURE"
    data_centers: frozenset[str] | None = None  # None: all
    cuda_versions: frozenset[str] = frozenset()  # empty: all
    min_cuda: str | None = None

    def could_use(self, host: Host) -> bool:
        """Were it free."""
        return (
            (host.gpu_id, host.cloud) == (self.gpu_id, self.cloud)
            and host.gpus >= self.count
            and (self.data_centers is None or host.data_center in self.data_centers)
            and self._cuda_suits(host.cuda)
        )

    def _cuda_suits(self, version: str | None) -> bool:
        if self.cuda_versions and version not in self.cuda_versions:
            return False
        return self.min_cuda is None or (version is not None and cuda_number(version) >= cuda_number(self.min_cuda))


@dataclass(slots=True)
class World:
    """A test sets its quirks when it makes one, and may change what it likes later."""

    catalog: Catalog = field(default_factory=Catalog)
    course: Course = field(default_factory=Course)  # of a pod that has none of its own
    listing_lag_s: float = 0.0  # until a new pod is listed
    terminated_shown_s: float = 0.0  # a terminated pod answers `get`, as TERMINATED, before it is 404
    billing_lag_s: float = 0.0  # until money that was spent is reported
    account_keys: str = ""  # what `startSsh` brings into a pod
    unknown_images: set[str] = field(default_factory=set)  # refused at create
    page_limit: int = 1000  # a page may be shorter than was asked for
    pods: list[Pod] = field(default_factory=list)  # all that ever were
    volumes: dict[str, Volume] = field(default_factory=dict)
    courses: deque[Course] = field(default_factory=deque)  # of the next pods, one each
    _volume_numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _logs: defaultdict[str, list[LogLine]] = field(default_factory=lambda: defaultdict(list))

    def create(self, settings: dict, now: float, *, cluster: str | None = None) -> Pod:
        """Place a pod. Raises NoCapacity."""
        wish = self.wish(settings)
        host = next((host for host in self.fitting_hosts(wish, now)), None)
        if host is None:
            raise NoCapacity
        course = self.courses.popleft() if self.courses else self.course
        number = len(self.pods) + 1
        price_usd = self.catalog.gpu_type(wish.gpu_id).price_usd(wish.cloud) * wish.count * course.cost_factor
        pod = Pod(f"pod{number:07d}", number, settings, host, price_usd, now, course, cluster)
        self.pods.append(pod)
        return pod

    def wish(self, settings: dict) -> Wish:
        gpu = settings["gpu"]
        places = frozenset(settings.get("dataCenterIds", ())) or None
        for mount in settings.get("mounts", {}).get("network", ()):
            places = frozenset({self.volume(mount["volumeId"]).data_center})
        return Wish(
            gpu["id"],
            gpu.get("count", 1),
            settings.get("cloud", "SECURE"),
            places,
            frozenset(gpu.get("allowedCudaVersions", ())),
            gpu.get("minCudaVersion"),
        )

    def fitting_hosts(self, wish: Wish, now: float) -> Iterable[Host]:
        """Machines with room for such a pod now."""
        return (host for host in self.catalog.hosts if wish.could_use(host) and self.free_gpus(host, now) >= wish.count)

    def free_gpus(self, host: Host, now: float) -> int:
        if self.catalog.is_closed(host.data_center, now):
            return 0
        return host.gpus - sum(pod.gpu_count for pod in self.pods if pod.host is host and pod.holds_gpus(now))

    def pod(self, pod_id: str, now: float) -> Pod:
        """One that `get` knows. Raises NotFound."""
        for pod in self.pods:
            if pod.id == pod_id and now < self._known_until(pod, now):
                return pod
        raise NotFound("pod")

    def living_pod(self, pod_id: str, now: float) -> Pod:
        """One that can still be changed. Raises NotFound."""
        pod = self.pod(pod_id, now)
        if pod.status(now) is Status.TERMINATED:
            raise NotFound("pod")
        return pod

    def listed(self, now: float, *, with_clusters: bool) -> list[Pod]:
        """Newest first."""
        return [
            pod
            for pod in reversed(self.pods)
            if now >= pod.created_at + self.listing_lag_s
            and pod.shown_phase(now).status is not Status.TERMINATED
            and (with_clusters or pod.cluster is None)
        ]

    def alive(self, now: float) -> list[Pod]:
        """Those that cost, if only for their disk: what a test asks at the end of a night."""
        return [pod for pod in self.pods if pod.status(now) is not Status.TERMINATED]

    def change(self, pod_id: str, action: str, now: float, *, stale_s: float = 0.0) -> Pod:
        """`stale_s`: a pod that is terminated is shown as before for so long."""
        pod = self.living_pod(pod_id, now)
        if pod.cluster is not None:
            raise Conflict("pod belongs to a cluster")
        if action not in ACTIONS[pod.status(now)]:
            raise Conflict(f"cannot {action} a pod that is {pod.status(now)}")
        if pod.settings.get("locked") and action in ("stop", "restart"):
            raise Conflict("pod is locked")
        self._act(pod, action, now)
        pod.stale_until = now + stale_s
        return pod

    def end(self, pod_id: str, status: Status, now: float) -> None:
        """Without a request: EXITED or ERROR if it dies, TERMINATED if it vanishes."""
        self.living_pod(pod_id, now).end(status, now)

    def volume(self, volume_id: str) -> Volume:
        if volume_id not in self.volumes:
            raise NotFound("network volume")
        return self.volumes[volume_id]

    def add_volume(self, name: str, size: int, data_center: str, volume_type: str) -> Volume:
        volume = Volume(f"vol{next(self._volume_numbers):05d}", name, size, data_center, volume_type)
        self.volumes[volume.id] = volume
        return volume

    def log(self, pod_id: str, text: str, now: float, source: str = "container") -> None:
        lines = self._logs[pod_id]
        lines.append(LogLine(now, len(lines) + 1, source, text))

    def log_lines(self, pod_id: str) -> list[LogLine]:
        return sorted(self._logs[pod_id])

    def settle(self, now: float) -> list[Turn]:
        """What came over the pods since it was last called, in order; it is logged too."""
        turns = [turn for pod in self.pods for turn in _unreported(pod, now)]
        turns.sort(key=lambda turn: turn.at)
        for turn in turns:
            self.log(turn.pod.id, SYSTEM_LINES[turn.status], turn.at, "system")
        return turns

    def _known_until(self, pod: Pod, now: float) -> float:
        phase = pod.phase(now)
        if phase.status is not Status.TERMINATED:
            return math.inf
        return max(pod.stale_until, phase.since + self.terminated_shown_s)

    def _act(self, pod: Pod, action: str, now: float) -> None:
        match action:
            case "start":
                self._start(pod, now)
            case "restart":
                pod.restart(now)
            case "stop":
                pod.end(Status.EXITED, now)
            case "terminate":
                pod.end(Status.TERMINATED, now)

    def _start(self, pod: Pod, now: float) -> None:
        """On the machine where it was, whose GPUs may be taken."""
        if not pod.holds_gpus(now) and self.free_gpus(pod.host, now) < pod.gpu_count:
            raise NoCapacity
        pod.begin(now)


def cuda_number(version: str) -> tuple[int, ...]:
    """12.11 is above 12.2; a bare 13 means any release of it."""
    return tuple(int(part) for part in version.split("."))


def _unreported(pod: Pod, now: float) -> list[Turn]:
    past = [phase for phase in pod.phases if phase.since <= now]
    turns = [Turn(pod, phase.status, phase.since) for phase in past[pod.reported :]]
    pod.reported = len(past)
    return turns
