"""Jobs of an owner: how many may be open, and how they are listed and dropped."""

import pytest

from jobs.client import Client
from jobs.errors import JobNotFound, TooManyJobs
from jobs.job_calls import cancel_job
from jobs.job_status import JobState
from jobs.lease import run_script
from jobs.operation import run
from jobs.request import GenerateRequest
from jobs.submission import Outcome, Owner, Submission, submit_all, submit_one
from jobs.submitted import drop_job, read_page
from tests.jobs import leasing
from tests.jobs.leasing import FAILED, SPEAK

REQUEST = GenerateRequest.parse(leasing.REQUEST)
finish = SPEAK["finish"]
ADA, BOB = Owner("ada", most_open=2), Owner("bob", most_open=2)


@pytest.fixture
def submit(redis):
    def submit(owner=ADA, **options):
        return run(submit_one(Submission(REQUEST, owner=owner, **options)), redis)

    return submit


def page(redis, owner="ada", limit=10, **options):
    found = run(read_page(owner, limit=limit, **options), redis)
    return [job.id for job in found.jobs], found.has_more


def test_an_owner_has_so_many_open_jobs_and_no_more(redis, submit):
    for _ in range(2):
        submit()
    with pytest.raises(TooManyJobs, match=r"ada has 2 renders that have not ended.*cancel one"):
        submit()
    assert redis.llen("rq:queue:default") == 2
    submit(BOB)
    submit(None)


def test_of_many_submits_those_that_are_too_many_are_told(redis):
    outcomes = [one.outcome for one in run(submit_all([Submission(REQUEST, owner=ADA)] * 3), redis)]
    assert outcomes == [Outcome.QUEUED, Outcome.QUEUED, Outcome.FULL]


def test_a_submit_that_is_repeated_is_answered_though_there_is_no_room(submit):
    jobs = [submit(idempotency_key=key) for key in "ab"]
    assert [submit(idempotency_key=key) for key in "ab"] == jobs


@pytest.mark.parametrize("end", ["finish", "fail", "cancel", "use_up"])
def test_a_job_that_ends_makes_room_and_one_that_is_retried_takes_it(redis, leases, claim, submit, use_up, end):
    first = submit()
    submit()
    match end:
        case "finish":
            finish(claim(first))
        case "fail":
            claim(first).fail(FAILED, "refused")
        case "cancel":
            Client(redis).job(first).cancel()
        case "use_up":
            use_up(claim(first))
    submit()
    if end in ("fail", "use_up"):
        leases.retry_dead(first)
        with pytest.raises(TooManyJobs):
            submit()


def test_a_retry_takes_room_and_waits_for_it(redis, claim, submit, use_up):
    dead = submit()
    use_up(claim(dead))
    for _ in range(2):
        submit()
    assert [run(run_script("retry_dead", dead, most), redis) for most in (2, 3)] == [2, 1]


def test_a_page_goes_on_where_it_was_though_jobs_come_and_go(redis, submit):
    ids = [submit(None) for _ in range(4)]
    run(cancel_job(ids[2], None), redis)
    assert run(drop_job(ids[2]), redis) == "dropped"
    submit(None)
    assert page(redis, None, limit=1, after=ids[2]) == ([ids[1]], True)


def test_jobs_whose_record_somebody_has_deleted_do_not_count(redis, submit):
    redis.delete(f"rq:job:{submit()}")
    for _ in range(2):
        submit()


def test_an_owner_sees_their_own_jobs_page_by_page_the_latest_first(redis, submit):
    first, other, second, nobodys = submit(), submit(BOB), submit(), submit(None)
    assert page(redis) == ([second, first], False)
    assert page(redis, limit=1) == ([second], True)
    assert page(redis, after=second) == ([first], False)
    assert page(redis, oldest_first=True) == ([first, second], False)
    assert page(redis, None) == ([nobodys, second, other, first], False)
    with pytest.raises(JobNotFound, match="no job of this list"):
        page(redis, after=other)


def test_a_page_is_full_though_records_are_gone(redis, submit):
    kept = [submit(None) for _ in range(2)]
    for _ in range(5):
        redis.delete(f"rq:job:{submit(None)}")
    assert page(redis, None, limit=2) == (kept[::-1], False)


def test_a_list_tells_whose_a_job_is_what_it_renders_and_when_it_ended(redis, claim, submit):
    job_id = submit()
    finish(claim(job_id))
    [job] = run(read_page("ada", limit=1), redis).jobs
    assert (job.owner, job.state, job.request.prompt) == ("ada", JobState.FINISHED, REQUEST.prompt)
    assert job.submitted_at <= job.ended_at


def test_a_job_that_has_ended_is_dropped_with_all_that_is_known_of_it(redis, claim, submit):
    job_id = submit()
    finish(claim(job_id))
    assert run(drop_job(job_id), redis) == "dropped"
    assert page(redis) == page(redis, None) == ([], False)
    assert not [key for key in redis.scan_iter() if job_id.encode() in key]
    assert not redis.zcard("rq:finished:default")
    assert run(drop_job(job_id), redis) == "dropped"  # the first answer may have been lost


def test_a_job_that_runs_is_hidden_and_one_that_waits_is_left_alone(redis, claim, submit):
    runs, waits = submit(), submit()
    lease = claim(runs)
    assert [run(drop_job(job_id), redis) for job_id in (runs, waits)] == ["hidden", "queued"]
    assert page(redis) == ([waits], False)
    finish(lease)
    assert page(redis) == ([waits], False)
