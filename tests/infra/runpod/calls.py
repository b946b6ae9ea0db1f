"""The operations of the document that this server has, by their ids: each is one function from a Call to an Answer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.infra.runpod import billing, logs, rules, shelf
from tests.infra.runpod.answers import EVENTS, Answer, Conflict, Refusal
from tests.infra.runpod.clock import Clock
from tests.infra.runpod.describe import describe_pod, describe_volume
from tests.infra.runpod.document import Operation
from tests.infra.runpod.pods import Pod
from tests.infra.runpod.world import World

CREATE_DEFAULTS = {
    "args": "",
    "disk": 50,
    "ports": [],
    "env": {},
    "registry": None,
    "mounts": {},
    "cloud": "SECURE",
}
SSE_HEADERS = {"Cache-Control": "no-cache", "Connection": "keep-alive", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class Call:
    """A request, read by the document."""

    operation: Operation
    world: World
    clock: Clock
    is_later: bool  # version of the document
    path: dict[str, str]
    query: dict
    headers: dict[str, str]
    body: object
    body_bytes: int
    stale_s: float = 0.0  # a deleted pod is still shown

    @property
    def now(self) -> float:
        return self.clock.now()

    def show(self, pod: Pod) -> dict:
        return describe_pod(pod, self.now, later=self.is_later)


def list_pods(call: Call) -> Answer:
    pods = call.world.listed(call.now, with_clusters=call.query.get("includeClusterPods", False))
    if not call.is_later:
        return Answer(200, {"pods": [call.show(pod) for pod in pods]})
    if "cursor" in call.query:
        after = rules.check_cursor(call.query["cursor"])
        pods = [pod for pod in pods if pod.number < after]
    page = pods[: min(call.query.get("limit", 1000), call.world.page_limit)]
    has_more = len(page) < len(pods)
    pagination = {"nextCursor": f"pods-{page[-1].number}" if has_more else None, "hasNextPage": has_more}
    return Answer(200, {"pods": [call.show(pod) for pod in page], "pagination": pagination})


def create_pod(call: Call) -> Answer:
    if call.is_later and call.body_bytes > rules.BODY_LIMIT_BYTES:
        raise Refusal(413, f"request body is above {rules.BODY_LIMIT_BYTES} bytes")
    return Answer(201, call.show(place_pod(call.world, call.body, call.now)))


def place_pod(world: World, body: dict, now: float, *, cluster: str | None = None) -> Pod:
    """By the rules, for whoever asks."""
    rules.check_create(body, world)
    settings = CREATE_DEFAULTS | body
    if body.get("startSsh") and world.account_keys:
        settings["env"] = {"PUBLIC_KEY": world.account_keys} | settings["env"]
    return world.create(settings, now, cluster=cluster)


def get_pod(call: Call) -> Answer:
    return Answer(200, call.show(call.world.pod(call.path["id"], call.now)))


def update_pod(call: Call) -> Answer:
    pod = call.world.living_pod(call.path["id"], call.now)
    if pod.cluster is not None:
        raise Conflict("pod belongs to a cluster")
    rules.check_update(call.body, pod.settings, call.world)
    pod.settings = pod.settings | call.body | {"mounts": pod.settings["mounts"] | call.body.get("mounts", {})}
    return Answer(200, call.show(pod))


def delete_pod(call: Call) -> Answer:
    call.world.change(call.path["id"], "terminate", call.now, stale_s=call.stale_s)
    return Answer(204)


def act_on_pod(call: Call) -> Answer:
    pod = call.world.change(call.path["id"], call.body["action"], call.now, stale_s=call.stale_s)
    return Answer(204) if call.body["action"] == "terminate" else Answer(200, call.show(pod))


def stream_logs(call: Call) -> Answer:
    """Until the client hangs up: the stream doesn't end by itself."""
    pod = call.world.pod(call.path["id"], call.now)
    reader = logs.reader(call.query, call.headers.get("Last-Event-ID"))

    def stream() -> Iterator[bytes]:
        yield b": connected\n\n"
        while True:
            yield b"".join(line.event() for line in reader.next_lines(call.world.log_lines(pod.id)))

    return Answer(200, content_type=EVENTS, headers=SSE_HEADERS, stream=stream)


def list_gpus(call: Call) -> Answer:
    rules.check_gpu_query(call.query)
    return Answer(200, {"gpus": shelf.list_gpus(call.world, call.query, call.now)})


def get_gpu(call: Call) -> Answer:
    rules.check_gpu_query(call.query)
    return Answer(200, shelf.describe_gpu(call.world, call.path["id"], call.query, call.now))


def list_data_centers(call: Call) -> Answer:
    return Answer(200, {"dataCenters": shelf.list_data_centers(call.world, call.query, call.now)})


def get_data_center(call: Call) -> Answer:
    return Answer(200, shelf.describe_data_center(call.world, call.path["id"], call.query, call.now))


def report_pod_billing(call: Call) -> Answer:
    rules.check_billing_query(call.query)
    asked = billing.window(call.query, call.now, call.world.billing_lag_s)
    return Answer(200, billing.report(call.world.pods, asked, call.query.get("podId")))


def list_volumes(call: Call) -> Answer:
    return Answer(200, {"networkVolumes": [describe_volume(volume) for volume in call.world.volumes.values()]})


def create_volume(call: Call) -> Answer:
    rules.check_new_volume(call.body, call.world)
    place = call.body["dataCenter"]
    volume_type = call.body.get("type", call.world.catalog.data_center(place).volume_types[0])
    return Answer(201, describe_volume(call.world.add_volume(call.body["name"], call.body["size"], place, volume_type)))


def get_volume(call: Call) -> Answer:
    return Answer(200, describe_volume(call.world.volume(call.path["id"])))


def update_volume(call: Call) -> Answer:
    volume = call.world.volume(call.path["id"])
    rules.check_resize(call.body.get("size", volume.size), volume.size)
    volume.name, volume.size = call.body.get("name", volume.name), call.body.get("size", volume.size)
    return Answer(200, describe_volume(volume))


def delete_volume(call: Call) -> Answer:
    del call.world.volumes[call.world.volume(call.path["id"]).id]
    return Answer(204)


CALLS: dict[str, Callable[[Call], Answer]] = {
    "listPods": list_pods,
    "createPod": create_pod,
    "getPod": get_pod,
    "updatePod": update_pod,
    "deletePod": delete_pod,
    "podAction": act_on_pod,
    "getPodLogs": stream_logs,
    "listGpuTypes": list_gpus,
    "getGpuType": get_gpu,
    "listDataCenters": list_data_centers,
    "getDataCenter": get_data_center,
    "listPodBilling": report_pod_billing,
    "listNetworkVolumes": list_volumes,
    "createNetworkVolume": create_volume,
    "getNetworkVolume": get_volume,
    "updateNetworkVolume": update_volume,
    "deleteNetworkVolume": delete_volume,
}
