"""A worker that is killed again and again, and started each time under its name, as a supervisor does."""

import signal

import pytest

from jobs import events
from tests.cases.runners import Script
from tests.waiting import eventually


@pytest.mark.slow
def test_a_worker_killed_again_and_again_is_one_worker_and_its_job_is_finished(farm, watched, full):
    """While it loads, while it drains, in full also idle: it never waits for a record of itself to expire."""
    farm.lease_s = 6.0
    script = Script(steps=3, segments=3, gate=str(farm.folder / "gate"), gate_step=2)
    job = farm.client.submit(script.request())

    for _ in range(2 if full else 1):
        loading = farm.start("--name", "gpu-1")
        eventually(loading.rank_pids, timeout_s=60)
        loading.kill_group()

    worker = farm.start_ready("--name", "gpu-1")
    farm.await_event(job.id, events.CheckpointSaved)
    worker.send(signal.SIGTERM)  # as by `docker stop`, but what it is at does not end in time
    eventually(lambda: "draining" in farm.states())
    worker.kill_group()

    (farm.folder / "gate").touch()
    worker = farm.start_ready("--name", "gpu-1")
    assert job.wait(timeout_s=60).attempt == 2
    if full:
        worker.kill_group()
        worker = farm.start_ready("--name", "gpu-1")
    assert farm.client.submit(Script(name="next").request()).wait(timeout_s=60).attempt == 1
    [record] = farm.list_workers()
    assert (record.name, record.pid, record.is_alive) == ("gpu-1", worker.process.pid, True)
    rendered = farm.rendered("job")
    assert rendered == [f"job step {i}" for i in range(1, 4)] + [f"job segment {i}" for i in range(3)]
    [lost] = farm.events_of(job.id, events.AttemptLost)
    assert lost.charge == "interrupted"
    worker.stop_as_docker_does()
    assert farm.list_workers() == []
