"""RunPod's API v2, typed: the calls that pods need, as its document has them.

A call for something that is not there raises NotFound; every other failure another ApiError. Reads and DELETE are
repeated where that helps; a create is sent once, and whoever calls it has to find out what came of a lost answer.
"""

from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from pydantic import SecretStr

from infra.answers import (
    DataCenter,
    DataCenters,
    GpuType,
    GpuTypes,
    LogLine,
    NetworkVolume,
    Pod,
    PodBilling,
    PodPage,
    parse_answer,
)
from infra.clock import Clock
from infra.errors import ListIncomplete, NotFound
from infra.log_stream import read_lines
from infra.order import MIN_CUDA, Cloud, PodBody
from infra.transport import Limits, Params, Transport, quote_id

PODS = "/v2/pods"
MOST_PAGES = 200


class PodCalls(Protocol):
    """What whoever starts and ends pods asks of RunPod, or of one that is played."""

    def list_gpus(self, count: int) -> tuple[GpuType, ...]: ...

    def create_pod(self, body: PodBody) -> Pod: ...

    def get_pod(self, pod_id: str) -> Pod: ...

    def list_pods(self) -> list[Pod]: ...

    def delete_pod(self, pod_id: str) -> None: ...


class RunPod:
    """The API with one account's key."""

    def __init__(self, origin: str, key: SecretStr, clock: Clock | None = None, limits: Limits | None = None) -> None:
        self._clock = clock or Clock()
        self._transport = Transport(origin, key, self._clock, limits or Limits())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._transport.__exit__(kind, exc, at)

    # --- catalog

    def list_gpus(self, count: int, cloud: Cloud = "SECURE", min_cuda: str = MIN_CUDA) -> tuple[GpuType, ...]:
        """Every type, with its stock in machines of so many GPUs."""
        params: Params = {
            "include": "AVAILABILITY",
            "product": "POD",
            "count": count,
            "cloud": cloud,
            "minCudaVersion": min_cuda,
        }
        return parse_answer(GpuTypes, self._transport.get("/v2/catalog/gpus", params), "list GPUs").gpus

    def list_data_centers(self) -> tuple[DataCenter, ...]:
        """Every one; its stock has no count, so it is not asked for."""
        body = self._transport.get("/v2/catalog/datacenters")
        return parse_answer(DataCenters, body, "list data centers").data_centers

    def get_volume(self, volume_id: str) -> NetworkVolume:
        body = self._transport.get(f"/v2/network-volumes/{quote_id(volume_id)}")
        return parse_answer(NetworkVolume, body, f"get network volume {volume_id}")

    # --- pods

    def create_pod(self, body: PodBody) -> Pod:
        """One POST, never repeated. An error whose `changed_nothing` is False leaves open whether there is a pod."""
        answer = self._transport.post_once(PODS, body.to_json())
        return parse_answer(Pod, answer, f"create pod {body.name}")

    def get_pod(self, pod_id: str) -> Pod:
        return parse_answer(Pod, self._transport.get(_pod_path(pod_id)), f"get pod {pod_id}")

    def list_pods(self) -> list[Pod]:
        """All of the account, other people's and clusters' too. Raises ListIncomplete rather than leave one out."""
        pods: dict[str, Pod] = {}
        for page in self._list_pages():
            for pod in page.pods:
                if pod.id in pods:
                    raise ListIncomplete(f"list pods: {pod.id} comes twice, so others may be missing: list again")
                pods[pod.id] = pod
        return list(pods.values())

    def _list_pages(self) -> Iterator[PodPage]:
        cursors: list[str] = []
        while len(cursors) < MOST_PAGES:
            params: Params = {"includeClusterPods": True, **({"cursor": cursors[-1]} if cursors else {})}
            page = parse_answer(PodPage, self._transport.get(PODS, params), "list pods")
            yield page
            if page.pagination is None or not page.pagination.has_next_page:
                return
            cursor = page.pagination.next_cursor
            if not cursor or cursor in cursors:
                raise ListIncomplete(f"list pods: page {len(cursors) + 1} does not lead on: list again")
            cursors.append(cursor)
        raise ListIncomplete(f"list pods: no end after {MOST_PAGES} pages")

    def delete_pod(self, pod_id: str) -> None:
        """Ask for its end, as often as need be; one that is gone already is a success. It ends some time after that."""
        try:
            self._transport.delete(_pod_path(pod_id))
        except NotFound:
            return

    def read_logs(
        self, pod_id: str, *, for_s: float, tail: int = 100, source: str | None = None, since: datetime | None = None
    ) -> Iterator[LogLine]:
        """Lines that are there and that come, until the time is over: RunPod never ends the stream."""
        params: Params = {"tail": tail, **({"source": source} if source else {})}
        return read_lines(self._transport, self._clock, f"{_pod_path(pod_id)}/logs", params, for_s=for_s, since=since)

    # --- billing

    def read_billing(self, pod_id: str | None, hours: int) -> PodBilling:
        """By the hour, of so many; about the last one RunPod may not know yet."""
        params: Params = {"bucketSize": "hour", "lastN": hours, **({"podId": pod_id} if pod_id else {})}
        return parse_answer(PodBilling, self._transport.get("/v2/billing/pods", params), "read billing")


def _pod_path(pod_id: str) -> str:
    return f"{PODS}/{quote_id(pod_id)}"
