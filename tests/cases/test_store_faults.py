"""A store that fails for a while, and one that refuses. One worker serves all tests but that over TLS."""

from uuid import uuid4

import pytest

from jobs import events
from jobs.errors import JobFailed
from jobs.lease import Charge, Leases
from jobs.store import open_store
from tests.cases.runners import Script
from tests.faulty_s3 import running_faulty_s3
from tests.waiting import eventually


@pytest.fixture(scope="module")
def faulty(s3_server):
    """A proxy before the test's server, as `faulty_s3`, for all tests of this file."""
    with running_faulty_s3(s3_server.endpoint) as faulty, pytest.MonkeyPatch.context() as patch:
        for name, value in (s3_server.environment | {"AWS_ENDPOINT_URL_S3": faulty.endpoint}).items():
            patch.setenv(name, value)
        yield faulty


@pytest.fixture
def s3_farm(lasting_farm, faulty, s3_server):
    """One worker before a store that does not fail yet."""
    faulty.heal()
    if not lasting_farm.workers:
        lasting_farm.store_url = f"s3://{s3_server.bucket}/{uuid4().hex}"
    lasting_farm.keep_ready(H3_DRAIN_S="4")
    return lasting_farm


def test_case_11_faults_that_pass_cost_nothing_even_if_they_are_more_than_the_library_tries(s3_farm, faulty, watched):
    faulty.answer(500, times=3, containing="segment-00001")
    faulty.reset(times=1, containing="segment-00002")
    faulty.lose_answer(times=1, containing="result.json")
    job = s3_farm.client.submit(Script(name="few faults", segments=4).request())
    assert job.wait(timeout_s=90).attempt == 1
    s3_farm.check_result(job.id)  # no empty and no short object
    assert s3_farm.rendered().count("few faults segment 1") == 1

    faulty.answer(500, times=12, containing="segment-00001")
    job = s3_farm.client.submit(Script(name="many faults", segments=3).request())
    assert job.wait(timeout_s=90).attempt == 1
    s3_farm.check_result(job.id)


def test_case_11_a_store_that_refuses_fails_the_job_and_leaves_the_fleet_alone(s3_farm, faulty, s3_server, watched):
    faulty.answer(403, containing="segment-00005")
    [worker] = s3_farm.living
    ranks = worker.rank_pids()
    job = s3_farm.client.submit(Script(name="refused", segments=8).request())
    with pytest.raises(JobFailed, match="AccessDenied"):
        job.wait(timeout_s=90)
    failed = job.news()[-1]
    assert isinstance(failed, events.Failed)
    assert failed.cause == "store"
    assert not any(isinstance(event, events.AttemptLost) for event in job.news())
    assert s3_farm.client.submit(Script(name="next").request()).wait(timeout_s=60).attempt == 1
    assert worker.rank_pids() == ranks

    kept = job.kept()  # listed for the next attempt
    assert [segment.piece.key.rsplit("/")[-1] for segment in kept.segments] == [
        f"segment-{i:05d}.m4s" for i in range(5)
    ]
    store = open_store(f"{s3_farm.store_url}?endpoint={s3_server.endpoint}")
    for segment in kept.segments:
        assert store.stat(segment.piece.key).sha256 == segment.piece.sha256
    assert store.stat(f"{job.id}/result.json") is None

    faulty.heal()
    assert s3_farm.run("dead", "retry", job.id).exit_code == 0
    s3_farm.await_event(job.id, events.Finished)
    rendered = s3_farm.rendered("refused segment")
    assert rendered.count("refused segment 4") == 1
    assert rendered[-1] == "refused segment 7"
    s3_farm.check_result(job.id)


def test_nobody_waits_for_a_store_that_does_not_answer_once_that_is_of_no_use(s3_farm, faulty, watched, tmp_path):
    """A second attempt begins with a look whether the job has a result. It ends the worker."""
    [worker] = s3_farm.living
    busy = s3_farm.client.submit(Script(name="busy", gate=str(tmp_path / "gate"), gate_step=1).request())
    s3_farm.await_event(busy.id, events.Started)
    stopped, canceled = (submit_second_attempt(s3_farm) for _ in range(2))  # the last one is first
    for job in (stopped, canceled):
        faulty.answer(503, containing=f"{job.id}/result.json", method="")
    (tmp_path / "gate").touch()
    eventually(lambda: faulty.seen("", canceled.id), timeout_s=30)
    canceled.cancel()
    s3_farm.await_event(canceled.id, events.Canceled)
    eventually(lambda: faulty.seen("", stopped.id), timeout_s=30)
    worker.stop_as_docker_does()
    assert stopped.status().state.is_queued
    assert s3_farm.first_in("default") == stopped.id
    assert [lost.charge for lost in s3_farm.events_of(stopped.id, events.AttemptLost)] == 2 * [Charge.DRAINED]


def submit_second_attempt(farm):
    """A job whose first attempt another worker has given back, to the head of the queue."""
    job = farm.client.submit(Script(name="second").request())
    leases = Leases(farm.redis)
    [waiting] = [waiting for waiting in leases.peek(["default"], 0, 2)[0] if waiting.job_id == job.id]
    leases.claim(waiting, "another worker").hand_back(Charge.DRAINED, "as if it were told to stop")
    return job


def test_a_job_is_rendered_over_tls(farm, tls_s3_store_url, watched):
    """Over TLS boto3 frames bodies in another way, which some services refuse."""
    farm.store_url = tls_s3_store_url
    farm.start_ready()
    job = farm.client.submit(Script(segments=3).request())
    assert job.wait(timeout_s=60).attempt == 1
    farm.check_result(job.id)
