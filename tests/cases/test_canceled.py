"""Jobs that are no longer wanted, whatever they are at, or not by all ranks. One worker with two serves all tests."""

import signal
import time
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from rq.command import send_stop_job_command
from rq.job import Job
from rq.serializers import JSONSerializer

from jobs import events
from jobs.errors import CancelRefused, JobNotFound
from jobs.lease import LEASES_KEY, Charge, Leases
from jobs.result import result_key
from jobs.store import open_store
from tests.cases.runners import Script
from tests.waiting import eventually

LEASE_S = 60.0  # as in production: the worker looks once a second whether somebody has asked for something


@pytest.fixture
def worker(lasting_farm):
    return lasting_farm.keep_ready("--queue", "default", ranks=2)


@pytest.fixture
def same_fleet(lasting_farm, worker, watched):
    """Whatever happens, the same ranks run the next job."""
    ranks = worker.rank_pids()
    assert len(ranks) == 2
    yield
    job = lasting_farm.client.submit(Script(name=f"next-{uuid4().hex}").request())
    assert job.wait(timeout_s=30).attempt == 1
    assert worker.rank_pids() == ranks


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def test_case_12_a_queued_job_never_runs(lasting_farm, same_fleet, gate):
    first = lasting_farm.client.submit(Script(name="first", gate=str(gate), gate_step=1).request())
    lasting_farm.await_event(first.id, events.Started)
    job = lasting_farm.client.submit(Script(name="queued").request())
    assert job.cancel()
    gate.touch()
    first.wait(timeout_s=30)
    assert (job.status().state, [event.kind for event in job.news()]) == ("canceled", ["queued", "canceled"])
    assert lasting_farm.rendered("queued ") == []


def test_case_12_a_job_that_is_canceled_at_step_10_stops_within_a_step_and_two_seconds(lasting_farm, same_fleet):
    step_s = 0.1
    job = lasting_farm.client.submit(Script(name="long", steps=100, step_s=step_s).request())
    lasting_farm.await_event(job.id, events.StepDone, count=10)
    asked_at = time.monotonic()
    assert not job.cancel()
    lasting_farm.await_event(job.id, events.Canceled)
    assert time.monotonic() - asked_at < step_s + 2
    steps = lasting_farm.rendered("long step")
    assert len(steps) < 40
    assert job.status().state == "canceled"
    assert job.kept().checkpoint.step == len(steps)
    assert not any(isinstance(event, events.AttemptLost) for event in job.news())


def by_command(farm, job):
    told = farm.run("cancel", job.id)
    assert (told.exit_code, told.stdout.strip()) == (0, f"{job.id} is being stopped")


def by_rqs_cancel(farm, job):
    Job.fetch(job.id, connection=farm.redis, serializer=JSONSerializer).cancel()


def by_rqs_stop(farm, job):
    send_stop_job_command(farm.redis, job.id, serializer=JSONSerializer)


@pytest.mark.parametrize(
    ("arrival", "cancel"),
    [(events.Started, by_rqs_cancel), (events.CheckpointSaved, by_rqs_stop), (events.SegmentReady, by_command)],
    ids=["by RQ's cancel before its text is encoded", "by RQ's stop-job between steps", "by command between clips"],
)
def test_a_running_job_is_canceled(lasting_farm, same_fleet, gate, arrival, cancel):
    """In time, and what it has published stays."""
    steps, segments = (1, 200) if arrival is events.SegmentReady else (200, 1)
    script = Script(name=arrival.__name__, steps=steps, step_s=0.05, segments=segments, segment_s=0.05)
    script = replace(script, gate_text=str(gate) if arrival is events.Started else "")
    job = lasting_farm.client.submit(script.request())
    lasting_farm.await_event(job.id, arrival, count=1 if arrival is events.Started else 2)
    cancel(lasting_farm, job)
    gate.touch()
    [canceled] = lasting_farm.await_event(job.id, events.Canceled)
    assert (canceled.attempt, job.status().state, job.news()[-1]) == (1, "canceled", canceled)
    check_kept(lasting_farm, job)
    done = lasting_farm.rendered(arrival.__name__)
    assert len(done) < 100
    assert len(job.kept().segments) == len([line for line in done if "segment" in line])


def check_kept(farm, job):
    """All of it is in the store as it was written, and there is no result."""
    store = open_store(farm.store_url)
    for piece in job.kept().pieces():
        assert store.stat(piece.key).sha256 == piece.sha256
    assert store.stat(result_key(job.id)) is None


def test_a_job_is_canceled_while_its_video_is_uploaded(lasting_farm, same_fleet):
    with lasting_farm.holding("video.mp4"):
        job = lasting_farm.client.submit(Script(name="uploading").request())
        eventually(lambda: "held video.mp4" in lasting_farm.rendered())
        job.cancel()
        lasting_farm.await_event(job.id, events.Canceled)  # nobody waits for what is on its way
    check_kept(lasting_farm, job)
    assert len(job.kept().segments) == 2


def test_a_cancel_that_comes_while_the_result_is_committed_comes_too_late(lasting_farm, same_fleet):
    with lasting_farm.holding("result.json"):
        job = lasting_farm.client.submit(Script(name="committing").request())
        eventually(lambda: "held result.json" in lasting_farm.rendered())
        assert not job.cancel()
        eventually(lambda: lasting_farm.redis.hget(f"rq:job:{job.id}", "h3_cancel") == b"1")
    assert job.wait(timeout_s=30).attempt == 1
    assert [event.kind for event in job.news() if event.is_last] == ["finished"]
    lasting_farm.check_result(job.id)


def test_case_12_a_job_that_has_just_finished_stays_as_it_is(lasting_farm, same_fleet):
    job = lasting_farm.client.submit(Script(name="finished").request())
    job.wait(timeout_s=30)
    before = job.news(), lasting_farm.redis.hgetall(f"rq:job:{job.id}")
    with pytest.raises(CancelRefused, match="has ended: finished"):
        job.cancel()
    told = lasting_farm.run("cancel", job.id)
    assert (told.exit_code, told.stderr.strip()) == (2, f"job {job.id} has ended: finished")
    assert (job.news(), lasting_farm.redis.hgetall(f"rq:job:{job.id}")) == before
    lasting_farm.check_result(job.id)


def test_case_12_to_cancel_a_job_that_is_not_known_does_nothing_to_one_that_comes_under_its_id(
    lasting_farm, same_fleet, monkeypatch
):
    later = UUID("0123456789abcdef0123456789abcdef")
    with pytest.raises(JobNotFound):
        lasting_farm.client.job(later.hex)
    told = lasting_farm.run("cancel", later.hex)
    assert (told.exit_code, f"no job {later.hex}" in told.stderr) == (2, True)
    with monkeypatch.context() as patch:
        patch.setattr("jobs.submission.uuid4", lambda: later)
        job = lasting_farm.client.submit(Script(name="later").request())
    assert job.id == later.hex
    assert job.wait(timeout_s=30).attempt == 1


def test_case_12_a_lost_attempt_cannot_be_canceled_while_the_next_one_runs(lasting_farm, same_fleet, gate):
    busy = lasting_farm.client.submit(Script(name="busy", gate=str(gate), gate_step=1).request())
    lasting_farm.await_event(busy.id, events.Started)
    job = lasting_farm.client.submit(Script(name="second", gate=str(gate), gate_step=2).request())
    leases = Leases(lasting_farm.redis)
    [[waiting]] = leases.peek(["default"], 0, 1)
    leases.claim(waiting, "another worker").hand_back(Charge.DRAINED, "as if it were told to stop")
    gate.touch()
    busy.wait(timeout_s=30)
    gate.unlink()
    lasting_farm.await_event(job.id, events.CheckpointSaved)
    with pytest.raises(CancelRefused, match=r"attempt 1 of job .* is not running: attempt 2 runs"):
        job.cancel(attempt=1)
    gate.touch()
    assert job.wait(timeout_s=30).attempt == 2


# --- after its deadline


def test_a_job_that_is_still_queued_after_its_deadline_fails_and_is_not_rendered(lasting_farm, same_fleet, gate):
    busy = lasting_farm.client.submit(Script(name="at work", gate=str(gate), gate_segment=1).request())
    lasting_farm.await_event(busy.id, events.SegmentReady)
    late = lasting_farm.client.submit(Script(name="late").request(deadline_s=0.01))
    behind = lasting_farm.client.submit(Script(name="behind").request())
    gate.touch()
    behind.wait(timeout_s=30)
    *_, failed = late.news()
    assert (failed.kind, failed.cause, failed.attempt) == ("failed", "deadline", 0)
    assert "wanted within 0.01 s" in failed.reason
    assert lasting_farm.rendered("late ") == []


def test_a_job_whose_deadline_passes_while_it_runs_fails_between_two_steps(lasting_farm, same_fleet):
    """What it has published stays, and so does the fleet."""
    script = Script(name="overrun", steps=200, step_s=0.05)
    job = lasting_farm.client.submit(script.request(deadline_s=2.0))
    [failed] = lasting_farm.await_event(job.id, events.Failed)
    assert (failed.cause, failed.attempt, job.status().state) == ("deadline", 1, "failed")
    assert len(lasting_farm.events_of(job.id, events.Started)) == 1
    rendered = len(lasting_farm.rendered("overrun step"))
    # The last may have been on its way: nobody goes on from there.
    assert job.kept().checkpoint.step in (rendered - 1, rendered)
    check_kept(lasting_farm, job)


def test_a_job_whose_deadline_passes_while_it_is_uploaded_fails(lasting_farm, same_fleet):
    with lasting_farm.holding("video.mp4"):
        job = lasting_farm.client.submit(Script(name="too late").request(deadline_s=2.0))
        [failed] = lasting_farm.await_event(job.id, events.Failed)
    assert failed.cause == "deadline"
    assert len(job.kept().segments) == 2


# --- what costs the fleet


def test_a_fleet_of_which_one_rank_has_refused_what_the_others_did_is_replaced_before_the_next_job(
    lasting_farm, worker, watched, tmp_path
):
    with lasting_farm.replacing_fleet(worker):
        job = lasting_farm.client.submit(Script(name="torn", refuse_until=str(tmp_path / "refused")).request())
        behind = lasting_farm.client.submit(Script(name="waits").request())
        assert job.wait(timeout_s=60).attempt == 2
        [lost] = lasting_farm.events_of(job.id, events.AttemptLost)
        assert (lost.charge, "AsymmetricRunnerError" in lost.reason) == ("fatal", True)
        assert behind.wait(timeout_s=30).attempt == 1
        assert lasting_farm.rendered("waits step 1") == ["waits step 1"]


def test_a_cancel_is_carried_out_though_its_worker_is_killed_by_then(lasting_farm, worker, watched, gate):
    job = lasting_farm.client.submit(Script(gate=str(gate), gate_step=2).request())
    lasting_farm.await_event(job.id, events.CheckpointSaved)
    worker.send(signal.SIGSTOP)  # it does not hear of it
    assert not job.cancel()
    worker.kill_group()
    lasting_farm.redis.zadd(LEASES_KEY, {job.id: 1})  # its lease runs out
    short = Leases(lasting_farm.redis, lease_s=0.1)  # for so long nothing is taken back from anybody, after a silence
    eventually(lambda: short.reap() and job.status().state == "canceled")
    assert [event.kind for event in job.news() if event.is_last] == ["canceled"]
    assert lasting_farm.first_in("default") is None
