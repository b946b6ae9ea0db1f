"""A store that fails for a while, and one that refuses."""

import pytest

from jobs import events
from jobs.errors import JobFailed
from jobs.lease import Charge, Leases
from jobs.store import open_store
from tests.cases.runners import Script
from tests.waiting import eventually


@pytest.fixture
def s3_farm(farm, faulty_s3, s3_store_url):
    farm.store_url = s3_store_url
    return farm


def test_case_11_faults_that_pass_cost_nothing_even_if_they_are_more_than_the_library_tries(
    s3_farm, faulty_s3, watched
):
    faulty_s3.answer(500, times=3, containing="segment-00001")
    faulty_s3.reset(times=1, containing="segment-00002")
    faulty_s3.lose_answer(times=1, containing="result.json")
    s3_farm.start_ready()
    job = s3_farm.client.submit(Script(segments=4).request())
    assert job.wait(timeout_s=90).attempt == 1
    s3_farm.check_result(job.id)  # no empty and no short object
    assert s3_farm.rendered().count("job segment 1") == 1

    faulty_s3.answer(500, times=12, containing="segment-00001")
    job = s3_farm.client.submit(Script(name="many faults", segments=3).request())
    assert job.wait(timeout_s=90).attempt == 1
    s3_farm.check_result(job.id)


def test_case_11_a_store_that_refuses_fails_the_job_and_leaves_the_fleet_alone(s3_farm, faulty_s3, s3_server, watched):
    faulty_s3.answer(403, containing="segment-00005")
    worker = s3_farm.start_ready()
    job = s3_farm.client.submit(Script(segments=8).request())
    with pytest.raises(JobFailed, match="AccessDenied"):
        job.wait(timeout_s=90)
    failed = job.news()[-1]
    assert isinstance(failed, events.Failed)
    assert failed.cause == "store"
    assert not any(isinstance(event, events.AttemptLost) for event in job.news())
    assert s3_farm.client.submit(Script(name="next").request()).wait(timeout_s=60).attempt == 1
    assert worker.log.read_text().count("starting the fleet") == 1

    kept = job.kept()  # listed for the next attempt
    assert [segment.piece.key.rsplit("/")[-1] for segment in kept.segments] == [
        f"segment-{i:05d}.m4s" for i in range(5)
    ]
    store = open_store(f"{s3_farm.store_url}?endpoint={s3_server.endpoint}")
    for segment in kept.segments:
        assert store.stat(segment.piece.key).sha256 == segment.piece.sha256
    assert store.stat(f"{job.id}/result.json") is None

    faulty_s3.heal()
    assert s3_farm.retry(job.id).returncode == 0
    s3_farm.await_event(job.id, events.Finished)
    rendered = [line for line in s3_farm.rendered() if line.startswith("job segment")]
    assert rendered.count("job segment 4") == 1
    assert rendered[-1] == "job segment 7"
    s3_farm.check_result(job.id)


def test_a_job_is_rendered_over_tls(farm, tls_s3_store_url, watched):
    """Over TLS boto3 frames bodies in another way, which some services refuse."""
    farm.store_url = tls_s3_store_url
    farm.start_ready()
    job = farm.client.submit(Script(segments=3).request())
    assert job.wait(timeout_s=60).attempt == 1
    farm.check_result(job.id)


def test_nobody_waits_for_a_store_that_does_not_answer_once_that_is_of_no_use(s3_farm, faulty_s3, watched):
    """A second attempt begins with a look whether the job has a result."""
    faulty_s3.answer(503, containing="result.json", method="")
    stopped, canceled = (submit_second_attempt(s3_farm) for _ in range(2))  # the last one is first
    worker = s3_farm.start_ready(H3_DRAIN_S="4")
    eventually(lambda: faulty_s3.seen("", canceled.id), timeout_s=30)
    canceled.cancel()
    s3_farm.await_event(canceled.id, events.Canceled)
    eventually(lambda: faulty_s3.seen("", stopped.id), timeout_s=30)
    worker.stop_as_docker_does()
    assert stopped.status().state.is_queued
    assert s3_farm.first_in("default") == stopped.id
    assert [lost.charge for lost in s3_farm.events_of(stopped.id, events.AttemptLost)] == 2 * [Charge.DRAINED]


def submit_second_attempt(farm):
    """A job whose first attempt another worker has given back, to the head of the queue."""
    job = farm.client.submit(Script().request())
    leases = Leases(farm.redis)
    [waiting] = [waiting for waiting in leases.peek(["default"], 0, 2)[0] if waiting.job_id == job.id]
    leases.claim(waiting, "another worker").hand_back(Charge.DRAINED, "as if it were told to stop")
    return job
