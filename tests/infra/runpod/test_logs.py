"""The log stream: which lines come, and that it goes on."""

import json
from contextlib import contextmanager

import httpx2
import pytest

from tests.infra.runpod.clients import body
from tests.infra.runpod.faults import Fault


@pytest.fixture
def pod(runpod, http):
    pod = http.post("/v2/pods", json=body()).json()
    for text in ("one", "two", "three"):
        runpod.advance(30)
        runpod.log_line(pod["id"], text)
    return pod


@contextmanager
def events(http, pod, query="", **headers):
    with http.stream("GET", f"/v2/pods/{pod['id']}/logs?{query}", headers=headers) as answer:
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream")
        yield parsed(answer.iter_lines())


def parsed(lines):
    event_id = ""
    for line in lines:
        if line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            yield json.loads(line.removeprefix("data: ")) | {"id": event_id}


def lines(http, pod, count, query="", **headers):
    with events(http, pod, query, **headers) as found:
        return [next(found)["line"] for _ in range(count)]


def test_both_sources_come_in_order_of_time(http, pod):
    assert lines(http, pod, 6) == ["create container", "pull image", "one", "two", "start container", "three"]


def test_one_source_can_be_asked_for(http, pod):
    assert lines(http, pod, 3, "source=container") == ["one", "two", "three"]


def test_only_the_tail_comes_and_then_what_is_new(runpod, http, pod):
    with events(http, pod, "source=container&tail=1") as found:
        assert next(found)["line"] == "three"
        runpod.log_line(pod["id"], "four")
        assert next(found)["line"] == "four"


def test_since_and_the_last_event_go_before_the_tail(http, pod):
    with events(http, pod, "source=container") as found:
        first, second = next(found), next(found)
    assert lines(http, pod, 2, f"source=container&tail=0&since={second['ts']}") == ["two", "three"]
    assert lines(http, pod, 1, f"source=container&since={first['ts']}", **{"Last-Event-ID": second["id"]}) == ["three"]


@pytest.mark.parametrize("query", ["tail=5001", "tail=-1", "source=both", "since=yesterday"])
def test_a_malformed_parameter_is_422(http, pod, query):
    assert http.get(f"/v2/pods/{pod['id']}/logs?{query}").status_code == 422


def test_the_log_of_a_pod_that_is_gone_is_404(http, pod):
    http.delete(f"/v2/pods/{pod['id']}")
    assert http.get(f"/v2/pods/{pod['id']}/logs").status_code == 404


def test_a_stream_may_break_after_its_first_lines(runpod, http, pod):
    runpod.script("GET", "/v2/pods/{id}/logs", Fault.HALF_BODY)
    with pytest.raises(httpx2.RemoteProtocolError), events(http, pod) as found:
        list(found)
