"""A Redis that is gone for a while. The times are reduced; `--full` gives the reported ones."""

import signal
import time

import pytest

from jobs import events
from jobs.workers import WorkerState
from tests.cases.runners import Script
from tests.waiting import eventually


@pytest.mark.slow
def test_case_10_a_job_that_ends_while_redis_is_down_is_recorded_when_it_is_back(own_farm, full):
    outage_s = 90 if full else 5
    own_farm.lease_s = 60 if full else 3
    own_farm.start_ready()
    gate = own_farm.folder / "gate"
    job = own_farm.client.submit(Script(gate=str(gate), gate_segment=1).request())
    own_farm.await_event(job.id, events.SegmentReady)
    own_farm.server.stop()
    gate.touch()
    eventually(lambda: "job segment 1" in own_farm.rendered())
    wait(outage_s)
    own_farm.server.start()
    assert job.wait(timeout_s=60).attempt == 1
    assert own_farm.rendered().count("job segment 1") == 1


@pytest.mark.slow
def test_case_10_a_worker_that_idles_while_redis_is_frozen_says_so_and_goes_on_and_stops_when_told_to(own_farm, full):
    worker = own_farm.start_ready()
    own_farm.server.pause()
    frozen_at = time.monotonic()
    eventually(lambda: "unhealthy: Redis does not answer" in worker.log.read_text(), timeout_s=60)
    if full:
        wait(300 - (time.monotonic() - frozen_at))
    own_farm.server.resume()
    job = own_farm.client.submit(Script().request())
    assert job.wait(timeout_s=60).attempt == 1
    assert worker.process.poll() is None

    eventually(lambda: own_farm.states() == [WorkerState.READY])
    own_farm.server.pause()
    worker.send(signal.SIGTERM)
    assert worker.process.wait(25) == 0
    own_farm.server.resume()


@pytest.mark.slow
def test_case_10_a_job_goes_on_through_a_frozen_redis(own_farm, full):
    own_farm.lease_s = 60 if full else 3
    for _ in range(2):
        own_farm.start_ready()
    gate = own_farm.folder / "gate"
    job = own_farm.client.submit(Script(steps=6, gate=str(gate), gate_step=3).request())
    own_farm.await_event(job.id, events.CheckpointSaved, count=2)
    own_farm.server.pause()
    gate.touch()
    eventually(lambda: "job segment 1" in own_farm.rendered(), timeout_s=30)  # the render does not wait
    wait(300 if full else 15)
    own_farm.server.resume()
    job.wait(timeout_s=90)
    told = job.news()
    assert [event.kind for event in told if event.is_last] == ["finished"]
    assert [event.attempt for event in told if isinstance(event, events.Started)] == [1]
    assert own_farm.rendered().count("job segment 1") == 1


def wait(seconds: float) -> None:
    """How long the outage lasts is what is tested."""
    time.sleep(seconds)
