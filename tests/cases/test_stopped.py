"""Workers that are told to stop."""

import signal

import pytest

from jobs import events
from tests.cases.runners import MOMENTS, SIGNAL_AT, Script

GRACE_S = 25


@pytest.mark.parametrize("moment", [*MOMENTS, "in the second segment"])
def test_case_2_a_worker_told_to_stop_loses_no_job(farm, watched, moment):
    gate = farm.folder / "gate"
    script = Script(gate=str(gate), gate_segment=1 if moment == "in the second segment" else None)
    worker = farm.start_ready(**({SIGNAL_AT: moment} if moment in MOMENTS else {}))
    job = farm.client.submit(script.request(), queue="high")
    farm.client.submit(Script(name="behind").request(), queue="batch")
    if moment not in MOMENTS:
        farm.await_event(job.id, events.SegmentReady)
        worker.send(signal.SIGTERM)
        gate.touch()
    worker.process.wait(GRACE_S)
    assert worker.process.returncode == 0

    assert (job.status(), farm.first_in("high")) in {("finished", None), ("queued", job.id)}
    losses = [event for event in job.news() if isinstance(event, events.AttemptLost)]
    assert [loss.charge for loss in losses] == ["drained"] * len(losses)
    assert not any(line.startswith("job step") for line in farm.rendered()) or job.status() == "finished"

    farm.start_ready("--burst").process.wait(60)  # whatever is left is rendered by the next one
    assert job.status() == "finished"
    assert [line for line in farm.rendered() if line.startswith("behind segment")] == [
        "behind segment 0",
        "behind segment 1",
    ]


def test_a_job_behind_is_not_touched_by_a_worker_that_stops(farm, watched):
    worker = farm.start_ready()
    first = farm.client.submit(Script(gate=str(farm.folder / "gate"), gate_step=2).request())
    farm.await_event(first.id, events.CheckpointSaved)
    behind = farm.client.submit(Script(name="behind").request())
    worker.send(signal.SIGTERM)
    (farm.folder / "gate").touch()
    worker.process.wait(GRACE_S)
    assert (first.status(), behind.status()) == ("finished", "queued")
    assert farm.redis.hget(f"rq:job:{behind.id}", "h3_attempts") is None
