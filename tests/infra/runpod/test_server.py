"""Calls over real sockets: the key, the log, pods from request to end, paging, rates, volumes."""

import math

import httpx2
import pytest

from tests.infra.runpod.catalog import SERVER_EDITION, Gap
from tests.infra.runpod.clients import body, client_of
from tests.infra.runpod.pods import Course, Status
from tests.infra.runpod.rates import RateLimit, Window
from tests.infra.runpod.server import running_runpod
from tests.infra.runpod.world import World


def create(http, **fields):
    answer = http.post("/v2/pods", json=body(**fields))
    assert answer.status_code == 201, answer.text
    return answer.json()


def get(http, pod_id):
    return http.get(f"/v2/pods/{pod_id}").json()


def ids(http):
    return [pod["id"] for pod in http.get("/v2/pods").json()["pods"]]


def test_a_pod_comes_up_in_steps(runpod, http):
    pod = create(http, ports=["22/tcp"])
    assert (pod["status"], pod["runtime"], pod["startedAt"]) == ("PROVISIONING", None, None)
    runpod.advance(20)
    assert get(http, pod["id"])["status"] == "STARTING"
    runpod.advance(60)
    pod = get(http, pod["id"])
    assert (pod["status"], pod["runtime"], pod["ssh"]["direct"]) == ("RUNNING", {}, None)
    runpod.advance(2)
    assert "ports" not in get(http, pod["id"])["runtime"]
    runpod.advance(8)
    pod = get(http, pod["id"])
    assert pod["runtime"]["ports"][0]["public"] == pod["ssh"]["direct"]["port"]
    assert pod["cost"] == pytest.approx(8 * 1.89)


def test_a_pod_is_404_once_it_is_deleted_and_costs_nothing(runpod, http):
    pod = create(http)
    assert len(runpod.alive()) == 1
    assert http.delete(f"/v2/pods/{pod['id']}").status_code == 204
    assert http.get(f"/v2/pods/{pod['id']}").status_code == 404
    assert http.delete(f"/v2/pods/{pod['id']}").status_code == 404
    assert (ids(http), runpod.alive()) == ([], [])


def test_a_stopped_pod_costs_nothing_and_starts_on_the_same_machine_if_it_is_free(runpod, http):
    pod = create(http, dataCenterIds=["EU-RO-1"])
    act = f"/v2/pods/{pod['id']}/action"
    stopped = http.post(act, json={"action": "stop"}).json()
    assert (stopped["status"], stopped["cost"], stopped["actions"]) == ("EXITED", 0.0, ["start", "terminate"])
    other = create(http, dataCenterIds=["EU-RO-1"])
    assert http.post(act, json={"action": "start"}).status_code == 400
    http.delete(f"/v2/pods/{other['id']}")
    assert http.post(act, json={"action": "start"}).json()["status"] == "PROVISIONING"


def test_a_restart_changes_the_public_port(runpod, http):
    pod = create(http, ports=["22/tcp"])
    runpod.advance(100)
    before = get(http, pod["id"])["ssh"]["direct"]["port"]
    assert http.post(f"/v2/pods/{pod['id']}/action", json={"action": "restart"}).json()["status"] == "STARTING"
    runpod.advance(100)
    assert get(http, pod["id"])["ssh"]["direct"]["port"] != before


def test_an_action_that_the_status_does_not_allow_is_409(http):
    pod = create(http)
    assert http.post(f"/v2/pods/{pod['id']}/action", json={"action": "restart"}).status_code == 409
    assert http.post(f"/v2/pods/{pod['id']}/action", json={"action": "terminate"}).status_code == 204


def test_a_terminated_pod_may_be_shown_as_such_before_it_is_404(later):
    with running_runpod(later=later, world=World(terminated_shown_s=30)) as runpod, client_of(runpod) as http:
        pod = create(http)
        http.delete(f"/v2/pods/{pod['id']}")
        shown = get(http, pod["id"])
        assert (shown["status"], shown["cost"], shown["actions"], ids(http)) == ("TERMINATED", 0.0, [], [])
        runpod.advance(30)
        assert http.get(f"/v2/pods/{pod['id']}").status_code == 404


def test_a_new_pod_may_be_listed_late(later):
    with running_runpod(later=later, world=World(listing_lag_s=5)) as runpod, client_of(runpod) as http:
        pod = create(http)
        assert (ids(http), get(http, pod["id"])["id"]) == ([], pod["id"])
        runpod.advance(5)
        assert ids(http) == [pod["id"]]


@pytest.mark.parametrize("status", [Status.EXITED, Status.ERROR])
def test_a_pod_dies_when_its_course_says_so(runpod, http, status):
    runpod.next_pods(Course(ends_as=status, ends_s=100))
    pod = create(http)
    runpod.advance(99)
    assert get(http, pod["id"])["status"] == "RUNNING"
    runpod.advance(1)
    assert get(http, pod["id"])["status"] == status


def test_a_pod_that_died_can_be_started_again(runpod, http):
    runpod.next_pods(Course(ends_as=Status.EXITED, ends_s=100))
    pod = create(http)
    runpod.advance(100)
    http.post(f"/v2/pods/{pod['id']}/action", json={"action": "start"})
    runpod.advance(80)
    assert get(http, pod["id"])["status"] == "RUNNING"


def test_a_pod_vanishes_while_it_starts(runpod, http):
    runpod.next_pods(Course(ends_as=Status.TERMINATED, ends_s=30))
    pod = create(http)
    runpod.advance(30)
    assert (http.get(f"/v2/pods/{pod['id']}").status_code, ids(http), runpod.alive()) == (404, [], [])


def test_a_pod_is_ended_by_the_test_without_a_request(runpod, http):
    pod = create(http)
    runpod.end_pod(pod["id"], Status.ERROR)
    assert get(http, pod["id"])["status"] == "ERROR"
    runpod.end_pod(pod["id"])
    assert ids(http) == []


def test_a_pod_may_never_start_and_may_have_no_place_at_first(runpod, http):
    runpod.next_pods(Course(starting_s=math.inf, placed_s=10))
    pod = create(http)
    assert (pod["dataCenterId"], pod["cudaVersion"], pod["ssh"]["proxy"]) == (None, None, None)
    runpod.advance(86_400)
    assert (get(http, pod["id"])["status"], get(http, pod["id"])["cudaVersion"]) == ("STARTING", "13.0")


def test_a_pod_may_differ_from_what_was_asked(runpod, http):
    runpod.next_pods(Course(cost_factor=2, differs={"cloud": "COMMUNITY"}))
    pod = create(http)
    assert (pod["cost"], pod["cloud"]) == (pytest.approx(2 * 8 * 1.89), "COMMUNITY")


def test_stock_is_what_the_pods_left(runpod, http):
    for _ in range(4):
        create(http, dataCenterIds=["US-KS-2"])
    refused = http.post("/v2/pods", json=body(dataCenterIds=["US-KS-2"]))
    assert refused.status_code == 400
    assert refused.json()["detail"].startswith(
        "There are no longer any instances available with the requested specifications"
    )
    assert create(http)["dataCenterId"] != "US-KS-2"


def test_nothing_is_placed_in_a_gap(runpod, http):
    with runpod.changing() as world:
        world.catalog.gaps.append(Gap("EU-RO-1", runpod.now, runpod.now + 60))
    assert http.post("/v2/pods", json=body(dataCenterIds=["EU-RO-1"])).status_code == 400
    runpod.advance(60)
    assert create(http, dataCenterIds=["EU-RO-1"])["dataCenterId"] == "EU-RO-1"


def test_a_floor_of_cuda_excludes_machines_by_number(runpod, http):
    gpu = {"id": SERVER_EDITION, "count": 8}
    old = create(http, gpu=gpu | {"allowedCudaVersions": ["12.8"]})
    assert (old["dataCenterId"], old["cudaVersion"]) == ("US-TX-3", "12.8")
    floor = body(gpu=gpu | {"minCudaVersion": "13.0"}, dataCenterIds=["US-TX-3"])
    http.delete(f"/v2/pods/{old['id']}")
    assert http.post("/v2/pods", json=floor).status_code == 400


def test_a_member_of_a_cluster_is_listed_on_request_and_cannot_be_deleted(runpod, http):
    member = runpod.add_pod(body(), cluster="cluster1")
    assert ids(http) == []
    pods = http.get("/v2/pods", params={"includeClusterPods": "true"}).json()["pods"]
    assert [pod["cluster"]["id"] for pod in pods] == ["cluster1"]
    assert http.delete(f"/v2/pods/{member.id}").status_code == 409
    assert http.patch(f"/v2/pods/{member.id}", json={"name": "b"}).status_code == 409


def test_an_update_changes_what_it_names(http):
    pod = create(http, env={"A": "1"})
    changed = http.patch(f"/v2/pods/{pod['id']}", json={"name": "h3-2", "locked": True}).json()
    assert (changed["name"], changed["locked"], changed["env"]) == ("h3-2", True, {"A": "1"})
    assert http.post(f"/v2/pods/{pod['id']}/action", json={"action": "stop"}).status_code == 409


def test_the_account_s_keys_come_by_ssh_flag_unless_the_request_has_its_own(later):
    with running_runpod(later=later, world=World(account_keys="ssh-ed25519 A a")) as runpod, client_of(runpod) as http:
        assert create(http, startSsh=True)["env"] == {"PUBLIC_KEY": "ssh-ed25519 A a"}
        assert create(http, startSsh=True, env={"PUBLIC_KEY": "mine"})["env"] == {"PUBLIC_KEY": "mine"}


def test_the_list_is_one_page_in_the_document_and_many_in_its_later_version(runpod, later, http):
    made = [create(http, gpu={"id": SERVER_EDITION})["id"] for _ in range(5)]
    first = http.get("/v2/pods", params={"limit": 2}).json()
    if not later:
        assert [pod["id"] for pod in first["pods"]] == made[::-1]
        assert "pagination" not in first
        assert runpod.outside()[0].outside == ("unknown parameter limit",)
        return
    found, cursor = first["pods"], first["pagination"]["nextCursor"]
    while cursor is not None:
        page = http.get("/v2/pods", params={"limit": 2, "cursor": cursor}).json()
        found, cursor = found + page["pods"], page["pagination"]["nextCursor"]
    assert [pod["id"] for pod in found] == made[::-1]
    assert http.get("/v2/pods", params={"cursor": "volumes-3"}).status_code == 422


def test_a_page_may_be_shorter_than_was_asked_for():
    with running_runpod(later=True, world=World(page_limit=1)) as runpod, client_of(runpod) as http:
        create(http), create(http)
        page = http.get("/v2/pods", params={"limit": 1000}).json()
        assert (len(page["pods"]), page["pagination"]["hasNextPage"]) == (1, True)


def test_later_fields_and_the_size_limit_are_of_the_later_version(later, http):
    pod = http.post("/v2/pods", json=body(cmd=["h3render"]))
    assert pod.status_code == (201 if later else 422)
    assert not later or (pod.json()["cmd"], pod.json()["gpu"]["memory"]) == (["h3render"], 8 * 180)
    large = http.post("/v2/pods", json=body(env={"A": "a" * 102_400}))
    assert large.status_code == (413 if later else 201)


@pytest.mark.parametrize("authorization", [None, "Bearer other", "Basic rpa_throw-away", "rpa_throw-away"])
def test_without_the_right_key_all_is_401_and_nothing_is_done(runpod, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = httpx2.post(f"{runpod.url}/v2/pods", json=body(), headers=headers, verify=False, trust_env=False)
    assert (answer.status_code, "RateLimit" in answer.headers) == (401, False)
    assert runpod.alive() == []
    assert [seen.key for seen in runpod.seen()] == ["missing" if authorization is None else "wrong"]


def test_the_log_has_each_request_without_its_key(runpod, http):
    http.get("/v2/pods", params={"includeClusterPods": "false"})
    assert runpod.changes() == []
    create(http, name="h3-7")
    http.request("DELETE", "/v2/pods/none")
    assert [(seen.method, seen.path, seen.status) for seen in runpod.seen()] == [
        ("GET", "/v2/pods", 200),
        ("POST", "/v2/pods", 201),
        ("DELETE", "/v2/pods/none", 404),
    ]
    assert runpod.seen("GET")[0].query == "includeClusterPods=false"
    assert runpod.seen("POST")[0].body["name"] == "h3-7"
    assert runpod.key not in repr(runpod.seen())
    assert len(runpod.changes()) == 2
    assert runpod.outside() == []


def test_what_is_outside_the_document_is_refused_and_noted(runpod, http):
    assert http.get("/v1/pods").status_code == 404
    assert http.put("/v2/pods", json={}).status_code == 405
    assert http.request("GET", "/v2/pods", json={}).status_code == 422
    assert http.post("/v2/pods", content=b"{", headers={"Content-Type": "application/json"}).status_code == 422
    unknown = http.post("/v2/pods", json=body(interruptible=True))
    assert unknown.status_code == 422
    assert "interruptible" in unknown.json()["errors"][0]
    assert unknown.headers["Content-Type"] == "application/problem+json"
    assert len(runpod.outside()) == 5


def test_a_missing_field_is_the_first_error(http):
    errors = http.post("/v2/pods", json={"image": "a", "gpu": {"id": SERVER_EDITION}}).json()["errors"]
    assert "'name' is a required property" in errors[0]
    assert len(errors) > 1


def test_each_answer_tells_what_is_left_of_the_rate(later):
    limit = RateLimit([Window("minute", 2, 60)])
    with running_runpod(later=later, rate_limit=limit) as runpod, client_of(runpod) as http:
        first = http.get("/v2/pods")
        assert first.headers["RateLimit-Policy"] == '"minute";q=2;w=60'
        assert first.headers["RateLimit"] == '"minute";r=1;t=60'
        runpod.advance(20)
        http.get("/v2/pods")
        refused = http.get("/v2/pods")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "40")
        runpod.advance(40)
        assert http.get("/v2/pods").status_code == 200


def test_volumes_are_made_read_grown_and_deleted(http):
    made = http.post("/v2/network-volumes", json={"name": "weights", "size": 100, "dataCenter": "US-KS-2"}).json()
    path = f"/v2/network-volumes/{made['id']}"
    assert http.get(path).json() == made
    assert http.patch(path, json={"size": 50}).status_code == 400
    assert http.patch(path, json={"size": 200}).json()["size"] == 200
    assert len(http.get("/v2/network-volumes").json()["networkVolumes"]) == 1
    assert http.delete(path).status_code == 204
    assert http.get(path).status_code == 404


def test_a_volume_fixes_the_place_of_its_pod(runpod, http):
    volume = runpod.world.add_volume("weights", 100, "EU-RO-1", "STANDARD")
    pod = create(http, mounts={"network": [{"volumeId": volume.id, "path": "/runpod-volume"}]})
    assert pod["dataCenterId"] == "EU-RO-1"


def test_an_operation_that_the_server_lacks_fails_the_test(later):
    refused = pytest.raises(AssertionError, match="getSshKeys")
    with refused, running_runpod(later=later) as runpod, client_of(runpod) as http:
        assert http.get("/v2/account/ssh-keys").status_code == 501


def test_an_answer_against_the_document_fails_the_test(later):
    refused = pytest.raises(AssertionError, match="'GOOD' is not one of")
    with refused, running_runpod(later=later) as runpod, client_of(runpod) as http:
        runpod.next_pods(Course(differs={"status": "GOOD"}))
        assert http.post("/v2/pods", json=body()).status_code == 500
