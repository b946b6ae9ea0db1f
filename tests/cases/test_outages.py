"""A Redis that is gone for a while. The times are reduced; `--full` gives the reported ones.

Two workers serve all tests.
"""

import signal
import time

import pytest

from jobs import events
from jobs.workers import WorkerState
from tests.cases.runners import Script
from tests.waiting import eventually

LEASE_S = 3.0
UNHEALTHY = "unhealthy: Redis does not answer"  # as a worker says


@pytest.fixture
def farm(lasting_farm, full):
    """With two workers that are ready; the last test ends one."""
    lasting_farm.lease_s = 60.0 if full else LEASE_S
    while len(lasting_farm.living) < 2:
        lasting_farm.start_ready()
    return lasting_farm


@pytest.mark.slow
def test_case_10_a_job_that_ends_while_redis_is_down_is_recorded_when_it_is_back(farm, full, tmp_path):
    outage_s = 90 if full else 5
    gate = tmp_path / "gate"
    job = farm.client.submit(Script(name="ends", gate=str(gate), gate_segment=1).request())
    farm.await_event(job.id, events.SegmentReady)
    farm.server.stop()
    gate.touch()
    eventually(lambda: "ends segment 1" in farm.rendered())
    wait(outage_s)
    farm.server.start()
    assert job.wait(timeout_s=60).attempt == 1
    assert farm.rendered().count("ends segment 1") == 1


@pytest.mark.slow
def test_case_10_a_job_goes_on_through_a_frozen_redis(farm, full, tmp_path):
    gate = tmp_path / "gate"
    job = farm.client.submit(Script(name="goes on", steps=6, gate=str(gate), gate_step=3).request())
    farm.await_event(job.id, events.CheckpointSaved, count=2)
    farm.server.pause()
    gate.touch()
    eventually(lambda: "goes on segment 1" in farm.rendered(), timeout_s=30)  # the render does not wait
    wait(300 if full else 15)
    farm.server.resume()
    job.wait(timeout_s=90)
    told = job.news()
    assert [event.kind for event in told if event.is_last] == ["finished"]
    assert [event.attempt for event in told if isinstance(event, events.Started)] == [1]
    assert farm.rendered().count("goes on segment 1") == 1


@pytest.mark.slow
def test_case_10_a_worker_that_idles_while_redis_is_frozen_says_so_and_goes_on_and_stops_when_told_to(farm, full):
    worker = farm.living[0]
    silences = worker.log.read_text().count(UNHEALTHY)
    farm.server.pause()
    frozen_at = time.monotonic()
    eventually(lambda: worker.log.read_text().count(UNHEALTHY) > silences, timeout_s=60)
    if full:
        wait(300 - (time.monotonic() - frozen_at))
    farm.server.resume()
    job = farm.client.submit(Script().request())
    assert job.wait(timeout_s=60).attempt == 1
    assert worker.process.poll() is None

    eventually(lambda: farm.states() == 2 * [WorkerState.READY], timeout_s=60)
    farm.server.pause()
    worker.send(signal.SIGTERM)
    assert worker.process.wait(25) == 0
    farm.server.resume()


def wait(seconds: float) -> None:
    """How long the outage lasts is what is tested."""
    time.sleep(seconds)
