"""Where a job stands, as a person is told: by the facts as values, and on a real Redis."""

import pytest

from jobs.client import Client
from jobs.errors import JobFailed, JobNotFinished, JobNotFound
from jobs.events import Failed, Queued, SegmentReady, Started, StepDone, StreamOpened, TextEncoded
from jobs.job_status import JobFacts, JobState, Phase, judge_running
from jobs.lease import Charge
from jobs.offers import Offer
from jobs.request import GenerateRequest, Mode
from jobs.workers import pause_queue, write_worker
from tests.jobs.leasing import FAILED, FINISHED, REQUEST, RESULT, run_out
from tests.jobs.records import record

NOW_S = 1_000_000.0
QUEUED = Queued(queue="default", request=GenerateRequest.parse(REQUEST).resolve())
TEXT = TextEncoded(tokens=20, seconds=0.3)
STREAM = StreamOpened(segments=4, playlist_key="p")


def at(event, ago_s):
    return event.model_copy(update={"id": f"{round((NOW_S - ago_s) * 1000)}-0"})


def step(number, ago_s=0.0, seconds=2.0):
    return at(StepDone(step=number, steps=10, sigma=1.0, seconds=seconds), ago_s)


def segment(index, ago_s):
    return at(SegmentReady(index=index, key="s", duration_s=0.7, playlist_key="p"), ago_s)


def running(*told, lease_for_s=30.0):
    until_ms = None if lease_for_s is None else (NOW_S + lease_for_s) * 1000
    facts = JobFacts(JobState.RUNNING, "started", "default", 2, "gpu-1", until_ms, NOW_S)
    return judge_running("j", facts, told)


@pytest.mark.parametrize(
    ("told", "phase", "done", "of", "eta_s"),
    [
        ([QUEUED, Started(attempt=1, worker="w")], Phase.TEXT, None, None, None),
        ([Started(attempt=1, worker="w"), TEXT], Phase.DENOISE, None, None, None),
        ([TEXT, step(1)], Phase.DENOISE, 1, 10, 18.0),
        ([TEXT, step(1), step(2, ago_s=1.5)], Phase.DENOISE, 2, 10, 14.5),
        ([step(1, seconds=60.0), *(step(n) for n in range(2, 5))], Phase.DENOISE, 4, 10, 12.0),  # the first is slow
        ([step(9, ago_s=100.0)], Phase.DENOISE, 9, 10, 0.0),  # late, but not in the past
        ([step(8), Started(attempt=2, worker="w"), TEXT, step(3)], Phase.DENOISE, 3, 10, 14.0),
        ([step(8), Started(attempt=2, worker="w")], Phase.TEXT, None, None, None),
        ([step(10)], Phase.DECODE, None, None, None),
        ([step(10), at(STREAM, 6.0)], Phase.DECODE, 0, 4, None),
        ([at(STREAM, 6.0), segment(0, 4.0), segment(1, 2.0)], Phase.DECODE, 2, 4, 2.0),
        ([at(STREAM, 6.0), segment(3, 0.0)], Phase.DECODE, 4, 4, 0.0),
        ([], Phase.TEXT, None, None, None),
    ],
)
def test_a_running_job_tells_phase_step_and_what_is_left_of_the_phase(told, phase, done, of, eta_s):
    status = running(*told)
    assert (status.phase, status.step, status.steps) == (phase, done, of)
    assert status.eta_s == (None if eta_s is None else pytest.approx(eta_s, abs=0.01))


@pytest.mark.parametrize(
    ("lease_for_s", "words"),
    [
        (30.0, "running on gpu-1, attempt 2, denoise 1/10, 18 s left"),
        (-20.0, "18 s left, its worker is silent, the lease ran out 20 s ago: another one takes it"),
        (None, "nobody holds its lease: `h3render cancel` ends it"),
    ],
)
def test_a_running_job_is_told_with_what_may_be_wrong(lease_for_s, words):
    assert words in running(step(1), lease_for_s=lease_for_s).describe()


# --- on a real Redis


@pytest.fixture
def client(redis):
    return Client(redis)


def test_a_queued_job_tells_its_place_in_its_queue(client, redis, claim):
    write_worker(redis, record(redis))
    jobs = [client.submit(REQUEST) for _ in range(3)]
    client.submit(REQUEST, queue="high")
    assert [job.status().position for job in jobs] == [1, 2, 3]
    assert jobs[2].status().describe() == "queued in default, number 3"
    claim(jobs[0].id)
    assert [job.status().position for job in jobs] == [None, 1, 2]
    assert [job.status().state for job in jobs] == ["running", "queued", "queued"]


def test_a_job_that_nobody_will_take_is_waiting_and_says_for_what(client, redis):
    job = client.submit(REQUEST | {"mode": "tensor"})
    write_worker(redis, record(redis, offer=Offer(modes=(Mode.ULYSSES,))))
    assert job.status().state is JobState.WAITING
    assert job.status().describe() == "waiting: no worker with mode tensor; in default, number 1"
    pause_queue(redis, "default")
    assert job.status().describe() == "waiting: queue default is paused; in default, number 1"


def test_a_running_job_tells_who_runs_it(client, redis, claim):
    job = client.submit(REQUEST)
    lease = claim(job.id)
    lease.tell(TEXT, StepDone(step=3, steps=50, sigma=0.9, seconds=2.0))
    status = job.status()
    assert (status.state, status.worker, status.attempt) == ("running", "w", 1)
    assert (status.phase, status.step, status.steps) == ("denoise", 3, 50)
    assert 90 < status.eta_s <= 94
    run_out(redis, lease)
    assert "its worker is silent" in job.status().reason


def test_a_job_that_was_given_back_tells_its_last_attempt(client, claim):
    job = client.submit(REQUEST)
    claim(job.id).hand_back(Charge.FATAL, "rank 1 died")
    status = job.status()
    assert (status.state.is_queued, status.attempt, status.position) == (True, 1, 1)


def test_an_ended_job_tells_how_and_why(client, claim, use_up):
    finished, failed, dead, canceled = (client.submit(REQUEST) for _ in range(4))
    claim(finished.id).finish(FINISHED, RESULT)
    claim(failed.id).fail(FAILED, "refused")
    use_up(claim(dead.id))
    canceled.cancel()
    told = [
        (job.status().state, job.status().reason, job.status().is_ended) for job in (finished, failed, dead, canceled)
    ]
    assert told == [
        ("finished", "", True),
        ("failed", "the prompt is refused", True),
        ("dead", "attempt 1 on w: first; attempt 2 on w: second; attempt 3 on w: third", True),
        ("canceled", "", True),
    ]


def test_an_ended_job_whose_events_are_gone_still_tells_its_state(client, redis, claim):
    job = client.submit(REQUEST)
    claim(job.id).fail(FAILED, "refused")
    redis.delete(f"h3:events:{job.id}")
    assert job.status().describe() == "failed: its last event is gone"


@pytest.mark.parametrize(
    ("status", "state"),
    [("queued", "waiting"), ("stopped", "canceled"), ("scheduled", "unknown"), ("", "unknown"), (b"\xff", "unknown")],
)
def test_what_others_have_written_into_a_job_is_told_as_it_is(client, redis, status, state):
    job = client.submit(REQUEST)
    redis.hset(f"rq:job:{job.id}", "status", status)
    assert job.status().state == state


def test_a_job_that_redis_has_no_record_of_is_unknown(client, redis):
    job = client.submit(REQUEST)
    redis.flushall()
    status = job.status()
    assert (status.state, status.is_ended) == (JobState.UNKNOWN, False)
    assert "records stay 30 days" in status.describe()
    with pytest.raises(JobNotFound, match=f"no job {job.id}"):
        client.job(job.id)


def test_a_job_without_a_result_says_why_it_has_none(client, redis, claim):
    waiting, running, failed, gone = (client.submit(REQUEST) for _ in range(4))
    claim(running.id)
    claim(failed.id).fail(Failed(attempt=1, reason="the picture is gone"), "x")
    redis.delete(f"rq:job:{gone.id}")
    for job, kind, words in (
        (waiting, JobNotFinished, "waiting: no worker is alive"),
        (running, JobNotFinished, f"is running on w, attempt 1, text: follow it with `h3render watch {running.id}`"),
        (failed, JobFailed, "failed in attempt 1: the picture is gone"),
        (gone, JobNotFound, "no job"),
    ):
        for ask in (job.result, job.urls):
            with pytest.raises(kind, match=words.replace("`", ".")):
                ask()


def test_what_rq_says_of_a_job_that_we_run_or_have_ended_is_judged_by_what_we_know(client, redis, claim):
    runs, finished, failed = (client.submit(REQUEST) for _ in range(3))
    lease = claim(runs.id)
    claim(finished.id).finish(FINISHED, RESULT)
    claim(failed.id).fail(FAILED, "refused")
    for job, status in ((runs, "canceled"), (finished, "queued"), (failed, "queued")):
        redis.hset(f"rq:job:{job.id}", "status", status)
    assert [job.status().state for job in (runs, finished, failed)] == ["running", "finished", "waiting"]
    lease.beat()
