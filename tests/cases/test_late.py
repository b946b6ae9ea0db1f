"""Jobs that nobody wants any more, and phases that take too long. One worker serves all tests."""

import pytest

from jobs import events
from jobs.result import result_key
from jobs.store import open_store
from tests.cases.runners import Script

PHASE_S = 2.0


@pytest.fixture
def worker(lasting_farm):
    limits = dict.fromkeys(("H3_DENOISE_TIMEOUT_S", "H3_DECODE_TIMEOUT_S"), str(PHASE_S))
    return lasting_farm.keep_ready(**limits)


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def test_a_job_that_is_still_queued_after_its_deadline_fails_and_is_not_rendered(lasting_farm, worker, watched, gate):
    busy = lasting_farm.client.submit(Script(name="busy", gate=str(gate), gate_segment=1).request())
    lasting_farm.await_event(busy.id, events.SegmentReady)
    late = lasting_farm.client.submit(Script(name="late").request(deadline_s=0.01))
    behind = lasting_farm.client.submit(Script(name="behind").request())
    gate.touch()
    behind.wait(timeout_s=30)
    *_, failed = late.news()
    assert (failed.kind, failed.cause, failed.attempt) == ("failed", "deadline", 0)
    assert "wanted within 0.01 s" in failed.reason
    assert lasting_farm.rendered("late") == []


def test_a_job_whose_deadline_passes_while_it_runs_fails_between_two_steps(lasting_farm, worker, watched):
    """What it has published stays, and so does the fleet."""
    ranks = worker.rank_pids()
    script = Script(name="overrun", steps=200, step_s=0.05)
    job = lasting_farm.client.submit(script.request(deadline_s=1.0))
    [failed] = lasting_farm.await_event(job.id, events.Failed)
    assert (failed.cause, failed.attempt, job.status().state) == ("deadline", 1, "failed")
    assert len(lasting_farm.events_of(job.id, events.Started)) == 1
    checkpoint = job.kept().checkpoint
    rendered = len(lasting_farm.rendered("overrun step"))
    assert checkpoint.step in (rendered - 1, rendered)  # the last may have been on its way: nobody goes on from there
    store = open_store(lasting_farm.store_url)
    assert store.stat(checkpoint.piece.key).sha256 == checkpoint.piece.sha256
    assert store.stat(result_key(job.id)) is None
    lasting_farm.client.submit(Script(name="next").request()).wait(timeout_s=30)
    assert worker.rank_pids() == ranks


def test_a_job_whose_deadline_passes_while_it_is_uploaded_fails(lasting_farm, worker, watched):
    with lasting_farm.holding("video.mp4"):
        job = lasting_farm.client.submit(Script(name="uploading").request(deadline_s=1.0))
        [failed] = lasting_farm.await_event(job.id, events.Failed)
    assert failed.cause == "deadline"
    assert len(job.kept().segments) == 2


def test_a_phase_that_takes_too_long_costs_an_attempt_and_the_next_goes_on_from_there(lasting_farm, worker, watched):
    """Each step and each clip is in time; together they take one and a half times what they may."""
    starts, number = worker.starts, round(1.5 * PHASE_S / 0.05)
    script = Script(name="slow", steps=number, step_s=0.05, segments=number, segment_s=0.05)
    job = lasting_farm.client.submit(script.request())
    assert job.wait(timeout_s=90).attempt == 3
    lost = lasting_farm.events_of(job.id, events.AttemptLost)
    assert [loss.charge for loss in lost] == ["fatal", "fatal"]
    assert ["its steps have taken 2 s" in lost[0].reason, "its clips have taken 2 s" in lost[1].reason] == [True, True]
    assert worker.starts == starts + 2
    assert len(lasting_farm.rendered("slow")) < 2.2 * number  # only what had not arrived is done again
    lasting_farm.check_result(job.id)
