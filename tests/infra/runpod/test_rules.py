"""The rules between fields: each is a 400 with its reason, in words; nothing is placed."""

import pytest

from tests.infra.runpod.catalog import SERVER_EDITION
from tests.infra.runpod.clients import body

NETWORK = {"volumeId": "vol00001", "path": "/runpod-volume"}
PERSISTENT = {"size": 100, "path": "/workspace"}
BROKEN = {
    "both": (body(cpu={"id": "cpu5c", "vcpuCount": 2}), "exactly one of gpu and cpu"),
    "neither": ({"name": "a", "image": "b"}, "exactly one of gpu and cpu"),
    "both mounts": (body(mounts={"persistent": PERSISTENT, "network": [NETWORK]}), "mutually exclusive"),
    "persistent mount of a CPU pod": (
        {"name": "a", "image": "b", "cpu": {"id": "cpu5c", "vcpuCount": 2}, "mounts": {"persistent": PERSISTENT}},
        "CPU pods have no persistent mount",
    ),
    "both CUDA fields": (
        body(gpu={"id": SERVER_EDITION, "minCudaVersion": "13.0", "allowedCudaVersions": ["13.0"]}),
        "mutually exclusive",
    ),
    "port alone": (body(ports=["22"]), "'22'"),
    "port too high": (body(ports=["70000/tcp"]), "'70000/tcp'"),
    "volume elsewhere": (body(mounts={"network": [NETWORK]}, dataCenterIds=["US-GA-2"]), "is in US-KS-2"),
    "volume in the community's cloud": (body(mounts={"network": [NETWORK]}, cloud="COMMUNITY"), "SECURE"),
    "unknown data center": (body(dataCenterIds=["us-ks-2"]), "us-ks-2"),
    "unknown GPU": (body(gpu={"id": "RTX 9090"}), "RTX 9090"),
    "more GPUs than a machine has": (body(gpu={"id": SERVER_EDITION, "count": 16}), "16"),
    "unknown image": (body(image="h3:none"), "h3:none"),
}


@pytest.fixture
def volume(runpod):
    return runpod.world.add_volume("weights", 100, "US-KS-2", "STANDARD")


@pytest.mark.parametrize(("request_body", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_create_that_breaks_a_rule_is_400_and_places_nothing(runpod, http, volume, request_body, reason):
    runpod.world.unknown_images.add("h3:none")
    answer = http.post("/v2/pods", json=request_body)
    assert (answer.status_code, runpod.alive()) == (400, [])
    assert reason in answer.json()["detail"]


def test_an_empty_set_of_cuda_versions_may_stand_beside_a_floor(http):
    gpu = {"id": SERVER_EDITION, "minCudaVersion": "13.0", "allowedCudaVersions": []}
    assert http.post("/v2/pods", json=body(gpu=gpu)).status_code == 201


@pytest.mark.parametrize(
    "fields", [{"mounts": {"network": [NETWORK]}}, {"templateId": "none"}], ids=["volume", "template"]
)
def test_a_create_that_names_what_does_not_exist_is_404(http, fields):
    assert http.post("/v2/pods", json=body(**fields)).status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        {"mounts": {"network": []}},
        {"mounts": {"persistent": PERSISTENT}},
        {"mounts": {"network": [NETWORK | {"volumeId": "other"}]}},
        {"ports": ["22"]},
    ],
)
def test_an_update_that_breaks_a_rule_is_400(http, volume, change):
    pod = http.post("/v2/pods", json=body(mounts={"network": [NETWORK]})).json()
    assert http.patch(f"/v2/pods/{pod['id']}", json=change).status_code == 400


def test_an_update_may_move_a_mount(http, volume):
    pod = http.post("/v2/pods", json=body(mounts={"network": [NETWORK]})).json()
    moved = {"network": [NETWORK | {"path": "/models"}]}
    assert http.patch(f"/v2/pods/{pod['id']}", json={"mounts": moved}).json()["mounts"] == moved


@pytest.mark.parametrize(
    "query",
    [
        "include=AVAILABILITY",
        "product=POD",
        "count=8",
        "cloud=SECURE",
        "countryCodes=US",
        "minCudaVersion=13.0",
        "include=AVAILABILITY&product=POD&minCudaVersion=13&cudaVersions=13.0",
    ],
)
@pytest.mark.parametrize("path", ["/v2/catalog/gpus", "/v2/catalog/gpus/NVIDIA%20H200"])
def test_a_catalog_query_that_breaks_a_rule_is_400(http, path, query):
    assert http.get(f"{path}?{query}").status_code == 400


@pytest.mark.parametrize("query", ["lastN=2&startTime=2026-12-01T00:00:00Z", "lastN=2&endTime=2026-12-01T00:00:00Z"])
def test_billing_by_both_kinds_of_window_is_400(http, query):
    assert http.get(f"/v2/billing/pods?{query}").status_code == 400


@pytest.mark.parametrize(
    "fields", [{"dataCenter": "US-GA-2"}, {"dataCenter": "none"}, {"dataCenter": "US-TX-3", "type": "HIGH_PERFORMANCE"}]
)
def test_a_volume_where_there_are_none_is_400(http, fields):
    assert http.post("/v2/network-volumes", json={"name": "a", "size": 10} | fields).status_code == 400
