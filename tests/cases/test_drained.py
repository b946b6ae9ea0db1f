"""Workers that are told to stop and cannot in good order: their job goes back in time, uncharged, with what is kept."""

import signal
import time
from dataclasses import replace

import pytest

from jobs import events
from jobs.lease import Charge
from tests.cases.runners import Script
from tests.waiting import eventually

NO_TIME_S = 6.0  # for what happens at once, on a busy machine; what is waited for takes 15 s


@pytest.fixture
def endless(farm):
    """Its second step does not end."""
    return Script(steps=4, gate=str(farm.folder / "never"), gate_in_step=2)


def start_at_second_step(farm, script, **environment):
    worker = farm.start_ready(**environment)
    job = farm.client.submit(script.request())
    farm.client.submit(Script(name="behind").request())
    farm.await_event(job.id, events.CheckpointSaved)
    return worker, job


def check_given_back(farm, job):
    assert (job.status().state.is_queued, farm.first_in("default")) == (True, job.id)
    [lost] = farm.events_of(job.id, events.AttemptLost)
    assert (lost.charge, lost.reason) == (Charge.DRAINED, "the worker was told to stop")
    assert farm.redis.hmget(f"rq:job:{job.id}", "h3_fatal", "h3_interruptions") == [None, None]
    assert job.kept().checkpoint.step == 1


def test_a_step_that_does_not_fit_the_grace_time_is_not_waited_for(farm, watched, endless):
    """By the median of the steps so far."""
    worker, job = start_at_second_step(farm, replace(endless, told_step_s=60.0))
    worker.stop_as_docker_does(grace_s=NO_TIME_S)  # of 25 s
    check_given_back(farm, job)


def test_a_runner_that_never_looks_whether_it_is_to_stop_is_ended_within_the_grace_time(farm, watched, endless):
    worker, job = start_at_second_step(farm, replace(endless, is_deaf=True), H3_DRAIN_S="5")
    told_at = time.monotonic()
    worker.stop_as_docker_does(grace_s=5 + 1)
    assert time.monotonic() - told_at > 5 * 0.6 - 0.5  # it has had its chance
    check_given_back(farm, job)


def test_a_worker_that_is_told_twice_to_stop_gives_its_job_back_at_once(farm, watched, endless):
    worker, job = start_at_second_step(farm, endless)
    worker.send(signal.SIGTERM)
    eventually(lambda: farm.states() == ["draining"])
    assert job.status().state == "running"
    worker.stop_as_docker_does(grace_s=NO_TIME_S)
    check_given_back(farm, job)


def test_a_worker_that_is_told_to_stop_while_redis_is_frozen_is_gone_soon_after_the_grace_time(own_farm):
    script = Script(steps=4, gate=str(own_farm.folder / "gate"), gate_in_step=2)
    worker, job = start_at_second_step(own_farm, script, H3_DRAIN_S="4")
    own_farm.server.pause()
    (own_farm.folder / "gate").touch()
    worker.stop_as_docker_does(grace_s=4 + 16)
    own_farm.server.resume()  # it may still read what the worker has asked for last
    own_farm.run("reap", "--once", "--lease-s", str(own_farm.lease_s))
    assert (job.status().state.is_queued, own_farm.first_in("default")) == (True, job.id)
    assert len(own_farm.events_of(job.id, events.AttemptLost)) == 1
