"""That each fault does what its comment says, to the requests that it was scripted for."""

import time

import httpx2
import pytest

from tests.infra.runpod.clients import body
from tests.infra.runpod.faults import Fault

INSTEAD = {
    Fault.SERVER_ERROR: 500,
    Fault.HTML_ERROR: 502,
    Fault.NO_CAPACITY: 400,
    Fault.UNAUTHORIZED: 401,
    Fault.NO_BALANCE: 402,
    Fault.FORBIDDEN: 403,
    Fault.CONFLICT: 409,
    Fault.RETIRED: 410,
}
LATER = pytest.mark.parametrize("later", [True], ids=["later document"])  # the document has no pages


def post(http):
    return http.post("/v2/pods", json=body())


@pytest.mark.parametrize(("fault", "status"), INSTEAD.items(), ids=lambda value: getattr(value, "name", value))
def test_a_fault_in_place_of_a_call_does_nothing_once(runpod, http, fault, status):
    runpod.script("POST", "/v2/pods", fault)
    assert (post(http).status_code, runpod.alive()) == (status, [])
    assert (post(http).status_code, len(runpod.alive())) == (201, 1)
    assert [seen.fault for seen in runpod.seen("POST")] == [fault, None]


def test_a_rate_limit_tells_when_to_come_again(runpod, http):
    runpod.script("GET", "/v2/pods", Fault.RATE_LIMITED, seconds=7)
    refused = http.get("/v2/pods")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "7")


def test_a_redirect_names_its_target(runpod, http):
    runpod.script("GET", "/v2/pods", Fault.REDIRECT, target="http://127.0.0.1:9/")
    answer = http.get("/v2/pods")
    assert (answer.status_code, answer.headers["Location"]) == (307, "http://127.0.0.1:9/")


@pytest.mark.parametrize(
    ("fault", "status"), [(Fault.SERVER_ERROR_AFTER_EFFECT, 500), (Fault.HTML_ERROR_AFTER_EFFECT, 502)]
)
def test_an_error_may_come_though_the_pod_is_there(runpod, http, fault, status):
    runpod.script("POST", "/v2/pods", fault)
    assert (post(http).status_code, len(runpod.alive())) == (status, 1)


@pytest.mark.parametrize(("fault", "pods"), [(Fault.CLOSE, 0), (Fault.CLOSE_AFTER_EFFECT, 1), (Fault.HALF_BODY, 1)])
def test_a_connection_may_close_before_or_after_the_pod_is_made(runpod, http, fault, pods):
    runpod.script("POST", "/v2/pods", fault)
    with pytest.raises(httpx2.RemoteProtocolError):
        post(http)
    assert len(runpod.alive()) == pods


def test_an_answer_may_drip_and_may_stall(runpod, http):
    runpod.script("GET", "/v2/catalog/datacenters/{id}", Fault.SLOW_DRIP, seconds=0.001)
    assert http.get("/v2/catalog/datacenters/US-KS-2").json()["id"] == "US-KS-2"
    runpod.script("GET", "/v2/pods", Fault.STALL, seconds=0.2)
    began = time.monotonic()
    assert http.get("/v2/pods").status_code == 200
    assert time.monotonic() - began >= 0.2


def test_a_client_with_a_deadline_leaves_a_drip(runpod, http):
    runpod.script("GET", "/v2/pods", Fault.SLOW_DRIP, seconds=60)
    with pytest.raises(httpx2.ReadTimeout):
        http.get("/v2/pods", timeout=0.1)


def test_a_list_may_have_a_pod_twice(runpod, http):
    pod = post(http).json()
    runpod.script("GET", "/v2/pods", Fault.DUPLICATE_ID)
    assert [each["id"] for each in http.get("/v2/pods").json()["pods"]] == [pod["id"]] * 2


@LATER
def test_a_cursor_may_repeat(runpod, http):
    runpod.script("GET", "/v2/pods", Fault.REPEATED_CURSOR, times=2)
    first = http.get("/v2/pods").json()["pagination"]["nextCursor"]
    assert http.get("/v2/pods", params={"cursor": first}).json()["pagination"]["nextCursor"] == first


@LATER
def test_a_list_may_never_end(runpod, http):
    post(http)
    runpod.script("GET", "/v2/pods", Fault.ENDLESS_CURSOR, times=9)
    page = http.get("/v2/pods").json()
    assert len(page["pods"]) == 1
    cursors = {page["pagination"]["nextCursor"]}
    for _ in range(8):
        page = http.get("/v2/pods", params={"cursor": page["pagination"]["nextCursor"]}).json()
        cursors.add(page["pagination"]["nextCursor"])
    assert (len(cursors), page["pods"]) == (9, [])


def test_an_answer_may_be_edited_into_anything(runpod, http):
    pod = post(http).json()
    runpod.script("GET", "/v2/pods/{id}", Fault.EDITED, edit=lambda answer: answer | {"status": "MIGRATING"})
    assert http.get(f"/v2/pods/{pod['id']}").json()["status"] == "MIGRATING"
    assert http.get(f"/v2/pods/{pod['id']}").json()["status"] == "PROVISIONING"


def test_an_answer_may_be_no_json_or_huge_or_deep(runpod, http):
    for fault in (Fault.NOT_JSON, Fault.HUGE, Fault.DEEP):
        runpod.script("GET", "/v2/pods", fault)
    assert http.get("/v2/pods").text.startswith("<!doctype")
    assert len(http.get("/v2/pods").content) > 8 << 20
    assert http.get("/v2/pods").text.startswith("[[[[")


def test_a_delete_may_fail_though_it_is_done(runpod, http):
    pod = post(http).json()
    runpod.script("DELETE", "/v2/pods/{id}", Fault.SERVER_ERROR_AFTER_EFFECT)
    assert [http.delete(f"/v2/pods/{pod['id']}").status_code for _ in range(2)] == [500, 404]


def test_a_deleted_pod_may_still_be_listed_for_a_while(runpod, http):
    pod = post(http).json()
    runpod.script("DELETE", "/v2/pods/{id}", Fault.STILL_LISTED, seconds=30)
    assert http.delete(f"/v2/pods/{pod['id']}").status_code == 204
    assert [each["status"] for each in http.get("/v2/pods").json()["pods"]] == ["PROVISIONING"]
    assert runpod.alive() == []
    runpod.advance(30)
    assert http.get("/v2/pods").json()["pods"] == []
    assert http.get(f"/v2/pods/{pod['id']}").status_code == 404


def test_a_fault_waits_for_its_request_and_is_forgotten_when_all_is_healed(runpod, http):
    one, two = post(http).json(), post(http).json()
    runpod.script("DELETE", f"/v2/pods/{two['id']}", Fault.SERVER_ERROR)
    assert http.delete(f"/v2/pods/{one['id']}").status_code == 204
    assert http.get(f"/v2/pods/{two['id']}").status_code == 200
    assert len(runpod.unused_faults()) == 1
    runpod.heal()
    assert http.delete(f"/v2/pods/{two['id']}").status_code == 204


def test_a_fault_may_let_some_requests_pass_first(runpod, http):
    runpod.script("GET", "/v2/pods", Fault.SERVER_ERROR, skip=1, times=2)
    assert [http.get("/v2/pods").status_code for _ in range(4)] == [200, 500, 500, 200]


def test_a_refused_create_stays_refused_whatever_happens_to_its_answer(runpod, http):
    runpod.script("POST", "/v2/pods", Fault.SERVER_ERROR_AFTER_EFFECT)
    assert http.post("/v2/pods", json=body(ports=["22"])).status_code == 400
