"""The cloud as its API tells it: late, with gaps, and at times not at all. The client's repeats are behind us."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NoReturn

from infra.answers import STOCK_ORDER, GpuType, Pod
from infra.errors import (
    ApiError,
    ConnectionLost,
    ListIncomplete,
    NotFound,
    NotReached,
    RateLimited,
    RequestRejected,
    ServerFailed,
)
from infra.order import PodBody
from infra.settings import IMAGE, SERVER_EDITION
from tools.simulate_nights.cloud import SHOWN_S, Cloud, RentedPod, Status
from tools.simulate_nights.crashes import Saboteur
from tools.simulate_nights.nights import (
    CONTAINER_GB,
    FAULTS_END_S,
    GPUS,
    HOST_GB,
    PLACES,
    USD_PER_HOUR,
    Fault,
    Night,
)
from tools.simulate_nights.timeline import BEGIN, HOUR_S, Timeline, to_seconds

READ_S, CREATE_S = (0.1, 0.8), (0.5, 4.0)  # that a call takes
FAILED_S, TIMED_OUT_S = (2.0, 60.0), 90.0  # with all its repeats
MORE_TO_CREATE = 1.0  # of the effect of a create, before its answer


class PlayedRunPod:
    """The calls that a reconciler makes."""

    def __init__(
        self, night: Night, timeline: Timeline, cloud: Cloud, saboteur: Saboteur, note_end: Callable[[RentedPod], None]
    ) -> None:
        """note_end  is told before each DELETE is sent"""
        self._random, self._rates, self._night = night.random("api"), night.rates, night
        self._timeline, self._cloud, self._saboteur, self._note_end = timeline, cloud, saboteur, note_end
        self.listed_s, self.listed_usd = 0.0, 0.0  # when the last whole list was made, and what pods had cost by then
        self._listed_from: dict[str, float] = {}
        self._shown: dict[tuple[str, Status], Pod] = {}

    # --- reads

    def list_gpus(self, count: int) -> tuple[GpuType, ...]:
        self._take(READ_S)
        if self._happens(self._rates.catalog_fails):
            self._fail()
        places = [place for place in PLACES if self._is_told_of(place)]
        stock = [{"id": place, "name": place, "availability": self._random.choice(STOCK_ORDER)} for place in places]
        return (GpuType.model_validate(_GPU | {"dataCenters": stock}),)

    def _is_told_of(self, place: str) -> bool:
        """A gap may not be in the catalog, all its hour long."""
        if self._cloud.has_stock(place):
            return True
        hour = int(self._timeline.now_s / HOUR_S)
        return self._night.random(f"told/{place}/{hour}").random() >= self._rates.gap_is_told

    def list_pods(self) -> list[Pod]:
        self._take(READ_S)
        if self._happens(self._rates.list_fails):
            self._fail(ListIncomplete("list pods: page 2 does not lead on: list again"))
        self.listed_s, self.listed_usd = self._timeline.now_s, self._cloud.usd
        pods = [self._show(pod) for pod in self._cloud.pods.values() if self._is_listed(pod)]
        if pods and self._happens(self._rates.list_omits):
            pods.remove(self._random.choice(pods))
        return pods

    def _is_listed(self, pod: RentedPod) -> bool:
        now_s = self._timeline.now_s
        if pod.gone_s is not None:
            return pod.number % 2 == 0 and now_s < pod.gone_s + SHOWN_S
        return now_s >= self._listed_from.get(pod.id, 0.0)

    def get_pod(self, pod_id: str) -> Pod:
        self._take(READ_S)
        if self._happens(self._rates.get_fails):
            self._fail()
        pod = self._cloud.pods[pod_id]
        if pod.gone_s is not None:
            raise NotFound(f"GET /v2/pods/{pod_id}: 404")
        return self._show(pod)

    # --- changes

    def create_pod(self, body: PodBody) -> Pod:
        self._saboteur.strike("before the create")
        self._take(CREATE_S)
        self._refuse_perhaps(body.data_center_ids[0])
        if self._happens(self._rates.lost_before):
            self._lose_answer()
        if self._happens(self._rates.lost_after):
            is_late = self._random.random() < self._rates.late
            wait_s = self._random.uniform(0, self._rates.late_within_s) if is_late else 0.0
            self._timeline.after(wait_s, lambda: self._create(body))
            self._lose_answer()
        pod = self._create(body)
        self._saboteur.strike("after the create")
        self._timeline.advance(MORE_TO_CREATE)
        return self._show(pod)

    def _refuse_perhaps(self, place: str) -> None:
        """So that there is certainly no pod."""
        if not self._cloud.has_stock(place) or self._happens(self._rates.refused):
            raise RequestRejected("POST /v2/pods: 400: There are no longer any instances available")
        if self._happens(self._rates.rate_limited):
            raise RateLimited("POST /v2/pods: 429", retry_after_s=10.0)
        if self._happens(self._rates.not_reached):
            raise NotReached("POST /v2/pods: no connection")

    def _create(self, body: PodBody) -> RentedPod:
        lease_until_s = to_seconds(datetime.fromisoformat(body.env["LEASE_UNTIL"]))
        pod = self._cloud.create(body.name, body.data_center_ids[0], lease_until_s)
        self._listed_from[pod.id] = self._timeline.now_s + self._random.uniform(0, self._rates.listing_lag_s)
        return pod

    def delete_pod(self, pod_id: str) -> None:
        pod = self._cloud.pods[pod_id]
        self._saboteur.strike("before the delete")
        self._note_end(pod)
        self._take(READ_S)
        fails = self._happens(self._rates.end_fails)
        if fails and self._random.random() < 0.5:
            self._fail()
        is_slow = self._happens(self._rates.end_slow)
        self._cloud.end(pod, self._random.uniform(0, self._rates.end_within_s) if is_slow else 0.0)
        self._saboteur.strike("after the delete")
        if fails:
            self._fail()

    # --- how it goes wrong

    def _happens(self, share: float) -> bool:
        return self._random.random() < share and self._timeline.now_s < FAULTS_END_S

    def _take(self, span_s: tuple[float, float]) -> None:
        self._timeline.advance(self._random.uniform(*span_s))

    def _fail(self, *more: ApiError) -> NoReturn:
        self._take(FAILED_S)
        raise self._random.choice([ServerFailed("500"), ConnectionLost("no answer in time"), RateLimited("429"), *more])

    def _lose_answer(self) -> NoReturn:
        if self._random.random() < 0.5:
            raise ServerFailed("POST /v2/pods: 500")
        self._timeline.advance(TIMED_OUT_S * self._random.random())
        raise ConnectionLost("POST /v2/pods: no whole answer")

    # --- as RunPod writes it

    def _show(self, pod: RentedPod) -> Pod:
        key = (pod.id, pod.status)
        if key not in self._shown:
            self._shown[key] = show_pod(pod)
        return self._shown[key]


_GPU = {
    "id": SERVER_EDITION,
    "name": "RTX PRO 6000",
    "memory": 96,
    "price": {"secure": USD_PER_HOUR / GPUS, "community": 0},
    "maxCount": {"secure": GPUS, "community": 0},
}


def show_pod(pod: RentedPod) -> Pod:
    """As it is now."""
    bills = pod.status not in (Status.EXITED, Status.TERMINATED)
    written = {
        "id": pod.id,
        "name": pod.name,
        "status": pod.status.value,
        "image": IMAGE,
        "gpu": {"id": SERVER_EDITION, "count": GPUS // 2 if pod.fate.fault is Fault.WRONG else GPUS},
        "cloud": "SECURE",
        "dataCenterId": pod.place,
        "cudaVersion": "13.0",
        "mounts": {"persistent": {"size": HOST_GB, "path": "/workspace"}},
        "disk": CONTAINER_GB,
        "ports": ["22/tcp"],
        "ssh": {"proxy": None, "direct": None},
        "cost": USD_PER_HOUR if bills else 0.0,
        "runtime": {"uptime": 5} if pod.status is Status.RUNNING else None,
        "createdAt": (BEGIN + timedelta(seconds=pod.created_s)).isoformat(),
    }
    return Pod.model_validate(written)
