"""Something real behind a pod, and clients in processes of their own."""

import os
import subprocess
import sys

import pytest

from tests.infra.runpod.clients import body, client_of
from tests.infra.runpod.clock import WallClock
from tests.infra.runpod.pods import QUICK, Status
from tests.infra.runpod.server import running_runpod
from tests.infra.runpod.world import World
from tests.waiting import eventually

CLIENT = """
import json, os, urllib.request as http
def call(method, path, body=None):
    request = http.Request(os.environ["RUNPOD_API_URL"] + path, body and json.dumps(body).encode(), method=method)
    request.add_header("Authorization", "Bearer " + os.environ["RUNPOD_API_KEY"])
    request.add_header("Content-Type", "application/json")
    return json.load(http.urlopen(request))
pod = call("POST", "/v2/pods", {"name": "h3-1", "image": "h3:1", "gpu": {"id": "NVIDIA H200"}})
while call("GET", "/v2/pods/" + pod["id"])["status"] != "RUNNING":
    pass
print(pod["id"])
"""


class Yard:
    """Remembers what began and what ended."""

    def __init__(self):
        self.events = []

    def start(self, name, env):
        self.events.append(("began", name, env))
        return lambda: self.events.append(("ended", name))


@pytest.fixture
def yard():
    return Yard()


def test_a_machine_begins_when_its_pod_runs_and_ends_with_it(yard):
    with running_runpod(start=yard.start) as runpod, client_of(runpod) as http:
        pod = http.post("/v2/pods", json=body(env={"QUEUE": "h3"})).json()
        runpod.advance(79)
        assert yard.events == []
        runpod.advance(1)
        assert yard.events == [("began", "h3-1", {"QUEUE": "h3"})]
        http.delete(f"/v2/pods/{pod['id']}")
        runpod.settle()
        assert yard.events[1:] == [("ended", "h3-1")]


@pytest.mark.parametrize("status", [Status.TERMINATED, Status.EXITED, Status.ERROR])
def test_a_machine_ends_when_its_pod_dies_or_vanishes(yard, status):
    with running_runpod(start=yard.start) as runpod, client_of(runpod) as http:
        pod = http.post("/v2/pods", json=body()).json()
        runpod.advance(80)
        runpod.end_pod(pod["id"], status)
        assert [event[0] for event in yard.events] == ["began", "ended"]


def test_a_restart_gives_a_new_machine(yard):
    with running_runpod(start=yard.start) as runpod, client_of(runpod) as http:
        pod = http.post("/v2/pods", json=body()).json()
        runpod.advance(80)
        http.post(f"/v2/pods/{pod['id']}/action", json={"action": "restart"})
        runpod.advance(60)
        assert [event[0] for event in yard.events] == ["began", "ended", "began"]


def test_machines_end_with_the_server(yard):
    with running_runpod(start=yard.start) as runpod, client_of(runpod) as http:
        http.post("/v2/pods", json=body())
        runpod.advance(80)
    assert [event[0] for event in yard.events] == ["began", "ended"]


def test_a_machine_that_does_not_start_fails_the_test():
    def refuse(name, env):
        raise OSError("no room")

    refused = pytest.raises(AssertionError, match="no room")
    with refused, running_runpod(start=refuse, clock=WallClock(), world=World(course=QUICK)) as runpod:
        runpod.add_pod(body())
        eventually(lambda: runpod.breaches)


def test_a_client_in_its_own_process_sees_a_pod_come_up_in_real_time(yard):
    with running_runpod(clock=WallClock(), world=World(course=QUICK), start=yard.start) as runpod:
        environment = os.environ | runpod.environment
        client = subprocess.run([sys.executable, "-S", "-c", CLIENT], env=environment, capture_output=True, timeout=30)
        assert client.stdout.decode().strip() == "pod0000001", client.stderr
        eventually(lambda: yard.events == [("began", "h3-1", {})])
        assert runpod.outside() == []
