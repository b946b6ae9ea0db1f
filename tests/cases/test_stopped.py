"""Workers that are told to stop, as by `docker stop`: SIGTERM, and SIGKILL ten seconds later. None needs the latter."""

import signal
from dataclasses import replace

import pytest

from jobs import events
from jobs.lease import Charge
from jobs.workers import read_workers
from tests.cases.runners import SIGNAL_AT, Script
from tests.waiting import eventually

GRACE_S = 10


@pytest.mark.slow
@pytest.mark.timeout(180)  # up to six workers, one after the other
def test_case_2_a_job_whose_workers_are_stopped_at_any_moment_is_rendered_once(farm, watched, full):
    script = Script(name="job", steps=4, checkpoint_every=10, gate_in_step=2, segments=3, gate_segment=1)
    gates = {"gate": str(farm.folder / "gate"), "gate_text": str(farm.folder / "gate-of-text") if full else ""}
    script = replace(script, **gates, stop_opens_gates=True)
    job = farm.client.submit(script.request(), queue="high")
    farm.client.submit(Script(name="behind").request(), queue="batch")
    stops = (stop_after_the_pop, stop_in_a_step, stop_in_the_decode)
    if full:
        stops = (stop_before_the_pop, stop_after_the_pop, stop_in_the_text, stop_in_a_step, stop_in_the_decode)
    for number, stop in enumerate(stops, 1):
        stop(farm, job)
        assert (job.status().state.is_queued, farm.first_in("high")) == (True, job.id)
        assert [loss.charge for loss in farm.events_of(job.id, events.AttemptLost)] == number * [Charge.DRAINED]
    assert farm.redis.hmget(f"rq:job:{job.id}", "h3_fatal", "h3_interruptions") == [None, None]
    assert farm.rendered("behind") == []

    stop_in_the_upload(farm, job)
    assert job.status().state == "finished"  # that fits in
    farm.check_result(job.id)
    assert farm.rendered("job") == [f"job step {i}" for i in range(1, 5)] + [f"job segment {i}" for i in range(3)]


def stop_before_the_pop(farm, job):
    farm.start(**{SIGNAL_AT: "before the pop"}).await_good_end(60)


def stop_after_the_pop(farm, job):
    farm.start(**{SIGNAL_AT: "after the pop"}).await_good_end(60)


def stop_in_the_text(farm, job):
    worker = farm.start_ready()
    eventually(lambda: [w.job.phase for w in read_workers(farm.redis) if w.job] == ["text"], timeout_s=30)
    worker.stop_as_docker_does()
    (farm.folder / "gate-of-text").touch()
    assert job.kept().mark == 0


def stop_in_a_step(farm, job):
    """It is finished, and kept though none is due."""
    worker = farm.start_ready()
    farm.await_event(job.id, events.StepDone)
    worker.stop_as_docker_does()
    assert job.kept().checkpoint.step == 2


def stop_in_the_decode(farm, job):
    worker = farm.start_ready()
    farm.await_event(job.id, events.SegmentReady)
    worker.stop_as_docker_does()
    (farm.folder / "gate").touch()
    assert len(job.kept().segments) == 1


def stop_in_the_upload(farm, job):
    with farm.holding("video.mp4"):
        worker = farm.start_ready()
        eventually(lambda: "held video.mp4" in farm.rendered(), timeout_s=30)
        worker.send(signal.SIGTERM)
        eventually(lambda: farm.states() == ["draining"])
    worker.await_good_end(GRACE_S)


def test_a_worker_that_is_stopped_while_it_loads_has_taken_nothing(farm, watched):
    job = farm.client.submit(Script().request())
    worker = farm.start(ranks=2)
    eventually(lambda: len(worker.rank_pids()) == 2, timeout_s=60)
    worker.stop_as_docker_does()
    assert "ready for jobs" not in worker.log.read_text()
    assert job.status().state.is_queued
    assert farm.redis.hget(f"rq:job:{job.id}", "h3_attempts") is None
    assert farm.list_workers() == []
