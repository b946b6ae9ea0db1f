"""How much work waits and runs, on a real Redis, and the command that tells it."""

import json
import time
from itertools import pairwise

import pytest
from redis import Redis
from rq.suspension import resume, suspend

from jobs.backlog import (
    MOST_JOBS,
    UNKNOWN,
    RunningJob,
    WaitingClass,
    choose_indices,
    estimate_remaining,
    read_backlog,
)
from jobs.client import Client
from jobs.events import SegmentReady, StepDone, StreamOpened, TextEncoded
from jobs.job_status import JOB_KEY, JobState, JobStatus, Phase
from jobs.offers import Offer
from jobs.render_times import RenderClass, RenderTimes, record_render
from jobs.request import GenerateRequest, Mode, Precision
from jobs.workers import pause_queue, resume_queue, write_worker
from tests.jobs.commands import invoke
from tests.jobs.leasing import FINISHED, RESULT, run_out
from tests.jobs.records import record

LARGE = {"prompt": "a red kite", "width": 1344, "height": 768, "frames": 124, "steps": 50}
SMALL = {"prompt": "an owl", "width": 864, "height": 480, "frames": 141, "steps": 30}
LARGE_LABEL, SMALL_LABEL = "1344x768, 124 frames, 50 steps", "864x480, 141 frames, 30 steps"


def class_of(fields, **offer):
    return RenderClass.of(GenerateRequest(**fields).resolve(), Offer(**offer))


TIMES = RenderTimes({class_of(LARGE): (100.0,) * 3 + (200.0, 300.0), class_of(SMALL): (40.0,) * 5})


@pytest.fixture
def submit(redis):
    return lambda fields=LARGE, queue="default", **more: Client(redis).submit(fields | more, queue=queue).id


@pytest.fixture
def read(redis):
    return lambda **options: read_backlog(redis, **({"times": TIMES} | options))


@pytest.fixture
def show(redis_url):
    return lambda *arguments, code=0: invoke("backlog", *arguments, "--url", redis_url, code=code)


# --- what waits


def test_what_waits_is_counted_by_what_it_costs(submit, read):
    for queue in ("high", "default", "batch"):
        submit(SMALL, queue, prompt=f"for {queue}")
    submit()
    submit(attention="sage")
    found = read()
    assert found.waiting == (
        WaitingClass(LARGE_LABEL, 1, 200.0),
        WaitingClass(f"{LARGE_LABEL}, sage", 1, 200.0),
        WaitingClass(SMALL_LABEL, 3, 40.0),
    )
    assert (found.waiting_s, found.running_s, found.seconds, found.jobs) == (520.0, 0.0, 520.0, 5)
    assert (found.running, found.unplaceable, found.is_estimated) == ((), 0, False)


def test_an_empty_farm_has_no_work_and_the_usual_job(read):
    found = read()
    assert (found.waiting, found.running, found.seconds, found.jobs, found.queued) == ((), (), 0.0, 0, 0)
    assert (found.p75_s, found.p99_s) == (200.0, 300.0)  # a request without a size is a large one


def test_one_job_of_the_backlog_is_judged_by_all_that_wait(submit, read):
    for _ in range(3):
        submit(SMALL)
    submit()
    found = read()
    assert (found.p75_s, found.p99_s) == (40.0, 300.0)


def test_what_is_held_back_is_no_work(redis, submit, read):
    submit(queue="batch")
    submit(SMALL)
    pause_queue(redis, "batch")
    assert [each.label for each in read().waiting] == [SMALL_LABEL]
    suspend(redis)
    assert read().jobs == 0
    resume(redis)
    resume_queue(redis, "batch")
    assert read().jobs == 2


def test_only_queues_that_such_a_worker_serves_are_read(submit, read):
    submit(queue="ours")
    submit(SMALL, "default")
    assert [each.label for each in read(offer=Offer()).waiting] == [SMALL_LABEL]
    assert [each.label for each in read(offer=Offer(queues=("ours", "high"))).waiting] == [LARGE_LABEL]
    assert read(offer=Offer(queues=())).jobs == 0


def test_what_no_such_worker_can_serve_is_told_apart(redis, submit, read):
    submit(mode="tensor")
    submit(precision="bf16")
    submit()
    redis.delete(f"h3:events:{submit()}")
    newer = submit()
    [(_, told)] = redis.xrange(f"h3:events:{newer}")
    redis.delete(f"h3:events:{newer}")
    redis.xadd(f"h3:events:{newer}", {"event": told[b"event"].replace(b'"version":2', b'"version":3')})
    found = read(offer=Offer(modes=(Mode.ULYSSES,), precisions=(Precision.NVFP4,)))
    assert (found.jobs, found.seconds, found.unplaceable) == (1, 200.0, 4)
    assert read(offer=Offer(most_pixels=1)).unplaceable == 5
    assert (read().jobs, read().unplaceable) == (3, 2)


def test_what_nobody_is_to_render_is_no_work(redis, submit, read, claim, use_up):
    Client(redis).job(submit()).cancel()
    use_up(claim(submit()))
    late = submit(deadline_s=5.0)
    redis.hset(JOB_KEY.format(job_id=late), "h3_queued_ms", int(time.time() * 1000) - 6000)
    in_time = submit(SMALL, deadline_s=500.0)
    redis.hset(JOB_KEY.format(job_id=submit()), "h3_hidden", 1)
    for state in ("canceled", "finished", "stopped"):  # as RQ's tools leave it
        redis.hset(JOB_KEY.format(job_id=submit()), "status", state)
    redis.delete(JOB_KEY.format(job_id=submit()))
    odd = submit()
    redis.delete(JOB_KEY.format(job_id=odd))
    redis.set(JOB_KEY.format(job_id=odd), "somebody's")
    redis.rpush("rq:queue:default", b"\xff\xfe", in_time)  # a second time
    found = read()
    assert found.waiting == (WaitingClass(SMALL_LABEL, 1, 40.0),)
    assert found.unplaceable == 0


# --- what runs


def test_what_runs_counts_with_what_is_left_of_it(redis, claim, submit, read):
    lease = claim(submit())
    lease.tell(TextEncoded(tokens=9, seconds=0.1), *(step(number) for number in range(1, 21)))
    [job] = read().running
    assert (job.job_id, job.worker, job.label, job.attempt, job.progress) == (lease.job_id, "w", LARGE_LABEL, 1, 0.4)
    assert job.remaining_s == pytest.approx(30 * 3 + 0.1 * 200, abs=2)
    found = read()
    assert found.seconds == found.running_s > 0
    assert (found.waiting, found.jobs) == ((), 1)
    lease.tell(StreamOpened(segments=4, playlist_key="p"))
    assert read().running == (RunningJob(lease.job_id, "w", 20.0, LARGE_LABEL, 1, 1.0),)
    lease.finish(FINISHED, RESULT)
    assert read().jobs == 0


def step(number, steps=50):
    return StepDone(step=number, steps=steps, sigma=1.0, seconds=3.0)


def test_an_attempt_that_has_told_nothing_yet_counts_as_a_whole_render(redis, claim, submit, read):
    lease = claim(submit())
    lease.hand_back("fatal", "rank 1 died")
    claim(lease.job_id)
    [job] = read().running
    assert (job.attempt, job.progress) == (2, 0.0)
    assert job.remaining_s == pytest.approx(200, abs=2)
    redis.hincrby(JOB_KEY.format(job_id=lease.job_id), "h3_claimed_ms", -50_000)
    assert read().running_s == pytest.approx(150, abs=2)


def test_one_that_is_about_to_stop_or_in_no_queue_of_ours_is_no_work(redis, claim, submit, read):
    canceled, stopped, hidden = (claim(submit()) for _ in range(3))
    Client(redis).job(canceled.job_id).cancel()
    redis.hset(JOB_KEY.format(job_id=stopped.job_id), "status", "stopped")
    redis.hset(JOB_KEY.format(job_id=hidden.job_id), "h3_hidden", 1)
    claim(submit(queue="ours"), "ours")
    redis.zadd("h3:leases", {"nobody": 1, b"\xff": 1})
    assert read().jobs == 0
    assert read(offer=Offer(queues=("ours",))).jobs == 1


def test_one_whose_worker_is_silent_or_whose_queue_is_paused_goes_on(redis, claim, submit, read):
    run_out(redis, claim(submit()))
    pause_queue(redis, "default")
    assert len(read().running) == 1


def test_one_that_cannot_be_read_any_more_runs_all_the_same(redis, claim, submit, read):
    redis.delete(f"h3:events:{claim(submit()).job_id}")
    [job] = read(offer=Offer(most_pixels=1)).running
    assert job.label == UNKNOWN
    assert job.remaining_s == pytest.approx(200, abs=2)


@pytest.mark.parametrize(
    ("phase", "eta_s", "age_s", "left_s"),
    [
        (Phase.TEXT, None, 0.0, 300.0),
        (Phase.TEXT, None, 100.0, 200.0),
        (Phase.DENOISE, None, 100.0, 200.0),
        (Phase.DENOISE, None, 299.0, 30.0),  # late
        (Phase.DENOISE, 120.0, 900.0, 150.0),  # whatever was thought before: this is its pace
        (Phase.DENOISE, 0.0, 10.0, 30.0),
        (Phase.DECODE, None, 400.0, 30.0),
        (Phase.DECODE, 12.0, 400.0, 12.0),
        (Phase.DECODE, 0.0, 400.0, 1.0),  # never nothing
    ],
)
def test_what_is_left_is_judged_by_the_jobs_own_pace_as_soon_as_there_is_one(phase, eta_s, age_s, left_s):
    status = JobStatus(id="j", state=JobState.RUNNING, phase=phase, eta_s=eta_s)
    assert estimate_remaining(status, 300.0, age_s) == left_s


def test_the_last_segments_of_a_decode_go_by_their_own_pace(claim, submit, read):
    lease = claim(submit())
    lease.tell(step(50), StreamOpened(segments=2, playlist_key="p"))
    lease.tell(*(SegmentReady(index=index, key="s", duration_s=0.7, playlist_key="p") for index in range(2)))
    assert read().running_s == 1.0


def test_a_job_that_is_taken_while_it_is_looked_for_counts_once(redis_url, claim, submit):
    class Slow(Redis):
        """Before it looks at what runs, something happens."""

        def zrange(self, *arguments, **options):
            claim(waiting)
            return super().zrange(*arguments, **options)

    waiting = submit()
    with Slow.from_url(redis_url) as redis:
        found = read_backlog(redis, times=TIMES)
    assert (found.waiting, [job.job_id for job in found.running]) == ((), [waiting])


# --- a long queue

COPY = """
local fields = {}
for i = 2, 3 do
  local told = redis.call('XRANGE', 'h3:events:' .. ARGV[i], '-', '+')[1][2]
  fields[i] = {redis.call('HGETALL', 'rq:job:' .. ARGV[i]), told}
end
for i = 1, tonumber(ARGV[1]) do
  local id, like = string.format('%032x', i), fields[2 + i % 2]
  redis.call('HSET', 'rq:job:' .. id, unpack(like[1]))
  redis.call('XADD', 'h3:events:' .. id, '*', unpack(like[2]))
  redis.call('RPUSH', 'rq:queue:batch', id)
end
"""


def test_a_long_queue_is_read_in_parts_soon_and_told_as_an_estimate(redis, submit, read):
    """One that goes through two sizes by turns, and few jobs of another queue before it."""
    redis.eval(COPY, 0, 20_000, submit(), submit(SMALL))
    began = time.monotonic()
    found = read()
    assert time.monotonic() - began < 3.0
    assert (found.queued, found.is_estimated) == (20_002, True)
    assert 0.9 * MOST_JOBS < found.looked_at <= MOST_JOBS + 2
    counts = {each.label: each.count for each in found.waiting}
    assert sum(counts.values()) == pytest.approx(20_002, abs=2)
    assert counts[LARGE_LABEL] == pytest.approx(10_001, rel=0.02)
    assert counts[SMALL_LABEL] == pytest.approx(10_001, rel=0.02)


@pytest.mark.parametrize(("length", "most"), [(1, 1), (5, 9), (9, 9), (3000, 2000), (100_000, 2000), (2001, 2000)])
def test_places_are_spread_over_the_whole_queue(length, most):
    indices = choose_indices(length, most)
    assert all(0 <= index < length for index in indices)
    assert 0.75 * min(length, most) <= len(indices) <= most
    part = length / len(indices)
    assert all(0 < after - before <= 2 * part + 1 for before, after in pairwise(indices))


@pytest.mark.parametrize("period", [2, 3, 4, 5, 7, 8, 10, 50])
def test_a_batch_that_repeats_itself_is_seen_in_its_shares(period):
    indices = choose_indices(100_000, 2000)
    for phase in range(period):
        seen = sum(index % period == phase for index in indices) / len(indices)
        assert seen == pytest.approx(1 / period, abs=0.01)


# --- how it is shown


def test_people_are_shown_classes_sums_and_what_is_left_out(redis, submit, claim, show):
    for seconds in (100.0, 100.0, 100.0, 200.0, 300.0):
        record_render(redis, class_of(LARGE), seconds)
    assert [line.split() for line in show().stdout.splitlines()] == [
        ["class", "jobs", "each", "together"],
        ["waiting", "0", "0", "s"],
        ["running", "0", "0", "s"],
        ["together", "0", "0", "s"],
    ]
    claim(submit())
    for _ in range(40):
        submit()
    redis.delete(f"h3:events:{submit()}")
    *table, unplaceable = show().stdout.splitlines()
    assert table == [
        "class                           jobs        each    together",
        "1344x768, 124 frames, 50 steps    40  3 min 20 s  2 h 13 min",
        "waiting                           40              2 h 13 min",
        "running                            1              3 min 20 s",
        "together                          41              2 h 16 min",
    ]
    assert unplaceable.startswith("unplaceable: 1 more job, for what")
    assert " of 41 that are queued were looked at\n" in show("--most", 21).stdout


def test_programs_are_told_all_of_it(submit, show):
    submit()
    told = json.loads(show("--json", "--pace", 0.4).stdout)
    assert told == {
        "waiting": [{"label": LARGE_LABEL, "count": 1, "seconds_each": pytest.approx(2559.8, abs=0.1)}],
        "running": [],
        "unplaceable": 0,
        "p75_s": told["seconds"],
        "p99_s": told["seconds"],
        "queued": 1,
        "looked_at": 1,
        "jobs": 1,
        "seconds": told["waiting_s"],
        "waiting_s": told["waiting"][0]["seconds_each"],
        "running_s": 0,
        "is_estimated": False,
    }


def test_it_can_be_asked_for_machines_like_one_that_is_there(redis, submit, show):
    write_worker(redis, record(redis, "gpu-1", offer=Offer(world_size=8, most_pixels=60_000_000)))
    for world_size, seconds in ((1, 800.0), (8, 100.0)):
        record_render(redis, class_of(SMALL, world_size=world_size), seconds)
    submit(SMALL)
    submit()
    told = json.loads(show("--like", "gpu-1", "--json").stdout)
    assert (told["waiting_s"], told["unplaceable"]) == (100.0, 1)
    assert "known are: gpu-1" in show("--like", "gpu-2", code=2).stderr


def test_a_redis_that_has_somebody_elses_keys_is_told(redis, show):
    redis.set("rq:queue:default", "no queue")
    assert "somebody else has written a key of ours" in show(code=2).stderr
