"""Jobs that are no longer wanted, that others are more urgent than, and queues that are held back. On a real Redis."""

import pytest
from rq.registry import CanceledJobRegistry, FailedJobRegistry

from jobs.client import Client
from jobs.errors import CancelRefused, JobFailed, JobNotFound
from jobs.events import Canceled, Failed
from jobs.lease import Charge, Orders, Place, Waiting
from jobs.workers import is_queue_paused, pause_queue, resume_queue
from tests.jobs.leasing import FINISHED, RESULT, everything, place_of, read_log, rq_job, rq_registry, run_out

CANCELED = Canceled(attempt=1)


@pytest.fixture
def client(redis):
    return Client(redis)


def orders(leases, lease):
    return leases.read_orders(("w",), lease)


# --- cancel


def test_a_job_that_waits_is_canceled_at_once_and_never_runs(client, redis, submit, claim):
    job = client.job(submit())
    assert job.cancel() is True
    assert (place_of(redis, job.id), job.status().state) == ("canceled", "canceled")
    assert claim(job.id) is None
    assert read_log(redis, job.id)[-1] == Canceled(attempt=0)
    assert job.id in rq_registry(CanceledJobRegistry, redis)
    assert rq_job(redis, job.id).is_canceled
    with pytest.raises(JobFailed, match="was canceled"):
        job.wait(timeout_s=5)


def test_a_job_that_runs_is_asked_to_stop_and_is_canceled_by_who_runs_it(client, redis, leases, submit, claim):
    job = client.job(submit())
    lease = claim(job.id)
    assert orders(leases, lease) == Orders()
    assert job.cancel() is False
    assert (place_of(redis, job.id), job.status().state) == ("claimed", "running")
    assert orders(leases, lease) == Orders(cancel=True)
    lease.cancel(CANCELED)
    assert (place_of(redis, job.id), job.status().state) == ("canceled", "canceled")
    assert read_log(redis, job.id)[-1] == CANCELED


def test_an_attempt_that_is_lost_after_its_job_was_canceled_is_the_last(client, redis, leases, submit, claim):
    handed_back, vanished = claim(submit()), claim(submit())
    for lease in (handed_back, vanished):
        client.job(lease.job_id).cancel()
    assert handed_back.hand_back(Charge.DRAINED, "told to stop") == Place.CANCELED
    run_out(redis, vanished)
    reaped = leases.reap()
    assert (reaped.queued, reaped.dead) == ((), ())
    assert [place_of(redis, lease.job_id) for lease in (handed_back, vanished)] == ["canceled", "canceled"]


def test_a_result_that_comes_before_the_stop_stands(client, redis, submit, claim):
    job = client.job(submit())
    lease = claim(job.id)
    job.cancel()
    lease.finish(FINISHED, RESULT)
    assert (place_of(redis, job.id), job.status().state) == ("finished", "finished")


@pytest.mark.parametrize("attempt", [None, 1])
def test_a_job_that_has_ended_is_not_canceled(client, redis, submit, claim, attempt):
    job = client.job(submit())
    claim(job.id).finish(FINISHED, RESULT)
    before = everything(redis)
    with pytest.raises(CancelRefused, match="has ended: finished"):
        job.cancel(attempt=attempt)
    assert everything(redis) == before


def test_an_attempt_that_no_longer_runs_is_not_canceled(client, redis, leases, submit, claim):
    job = client.job(submit())
    claim(job.id).hand_back(Charge.FATAL, "rank 1 died")
    with pytest.raises(CancelRefused, match=r"attempt 1 of job \w+ is not running: none runs"):
        job.cancel(attempt=1)
    second = claim(job.id)
    with pytest.raises(CancelRefused, match="is not running: attempt 2 runs"):
        job.cancel(attempt=1)
    assert orders(leases, second) == Orders()
    job.cancel(attempt=2)
    assert orders(leases, second) == Orders(cancel=True)


def test_what_was_asked_of_one_attempt_is_not_asked_of_the_next(client, redis, leases, submit, claim):
    job = client.job(submit())
    first = claim(job.id)
    job.cancel()
    first.hand_back(Charge.FATAL, "rank 1 died")
    assert job.status().state == "canceled"
    redis.hset(f"rq:job:{job.id}", "status", "queued")  # as `rq requeue` leaves it
    redis.lpush("rq:queue:default", job.id)
    second = claim(job.id)
    assert orders(leases, second) == Orders()
    assert orders(leases, first) == Orders()


def test_an_unknown_job_is_named_and_a_later_one_of_that_id_unharmed(client, redis, submit, claim):
    known = client.job(submit())
    redis.rename(f"rq:job:{known.id}", "elsewhere")
    with pytest.raises(JobNotFound, match=known.id):
        known.cancel()
    redis.rename("elsewhere", f"rq:job:{known.id}")
    assert claim(known.id).attempt == 1


def test_rqs_own_cancel_is_heard(client, redis, leases, submit, claim):
    waiting, running = client.job(submit()), client.job(submit())
    lease = claim(running.id)
    for job in (waiting, running):
        rq_job(redis, job.id).cancel()
    assert claim(waiting.id) is None
    assert waiting.status().state == "canceled"
    assert orders(leases, lease) == Orders(cancel=True)
    lease.hand_back(Charge.DRAINED, "told to stop")
    assert place_of(redis, running.id) == "canceled"


# --- what is more urgent


def test_one_worker_makes_way_for_a_waiting_job(leases, submit, claim):
    urgent = submit()
    assert leases.make_way(urgent, "a")
    assert not leases.make_way(urgent, "b")
    assert not leases.make_way(urgent, "a")
    assert not leases.make_way("unknown", "a")
    claim(taken := submit())
    assert not leases.make_way(taken, "a")


def test_a_job_that_nobody_wants_any_more_fails_where_it_waits_and_not_where_it_runs(
    client, redis, leases, submit, claim
):
    late, running = submit(), submit()
    claim(running)
    event = Failed(attempt=0, cause="deadline", reason="too late")
    for job_id in (late, running, "unknown"):
        leases.give_up(Waiting(job_id, "default", "", b"", 0.0), event, "too late", "w")
    assert [place_of(redis, job_id) for job_id in (late, running)] == ["failed", "claimed"]
    assert read_log(redis, late)[-1] == event
    assert late in rq_registry(FailedJobRegistry, redis)
    assert rq_job(redis, late).latest_result().exc_string == "too late"
    assert redis.hlen("h3:quarantine") == 0


# --- queues that are held back


def test_nothing_is_taken_of_a_paused_queue_until_it_is_resumed(redis, leases, submit, claim):
    job_id = submit()
    [[waiting]] = leases.peek(["default"], 0, 10)
    pause_queue(redis, "default")
    assert is_queue_paused(redis, "default")
    assert leases.peek(["default"], 0, 10) == [[]]
    assert leases.claim(waiting, "w") is None  # looked at before the pause
    assert place_of(redis, job_id) == "queued"
    resume_queue(redis, "default")
    assert leases.claim(waiting, "w", "nonce").attempt == 1
    pause_queue(redis, "default")
    assert leases.claim(waiting, "w", "nonce").attempt == 1  # the answer to the first call was lost on its way


def test_a_job_that_runs_goes_on_while_its_queue_is_paused(redis, submit, claim):
    lease = claim(submit())
    pause_queue(redis, "default")
    lease.beat()
    assert lease.hand_back(Charge.DRAINED, "told to stop") == Place.QUEUED


def test_to_cancel_once_more_says_the_same(client, submit):
    """The answer of a first try may have been lost on its way."""
    job = client.job(submit())
    assert [job.cancel(), job.cancel()] == [True, True]
    with pytest.raises(CancelRefused, match="has ended: canceled"):
        job.cancel(attempt=1)


def test_a_job_that_is_canceled_while_it_waits_again_tells_its_attempts(client, redis, submit, claim):
    job = client.job(submit())
    claim(job.id).hand_back(Charge.FATAL, "rank 1 died")
    job.cancel()
    assert read_log(redis, job.id)[-1] == Canceled(attempt=1)


def test_a_job_whose_lease_somebody_has_deleted_can_be_ended(client, redis, submit, claim):
    job = client.job(submit())
    claim(job.id)
    redis.delete("h3:leases")
    assert "nobody holds its lease" in job.status().describe()
    assert job.cancel() is True
    assert job.status().state == "canceled"
