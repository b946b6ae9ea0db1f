import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry

from jobs.client import Client
from jobs.errors import LeaseLost
from jobs.events import AttemptLost, Canceled, Dead, Failed, Loss
from jobs.lease import (
    DEAD_KEY,
    LEASE_S,
    LEASES_KEY,
    LOSSES_KEY,
    MOST_REASON_LETTERS,
    QUARANTINE_KEY,
    WAKE_CHANNEL,
    Charge,
    Leases,
    LeaseScript,
    Place,
    Waiting,
)
from jobs.pieces import KeptPieces
from jobs.queues import RECORD_TTL_S
from tests.jobs.leasing import (
    FAILED,
    FINISHED,
    KEPT,
    RESULT,
    SAVED,
    SPEAK,
    STEP,
    claim_job,
    everything,
    place_of,
    read_log,
    rq_job,
    rq_registry,
    run_out,
)
from tests.waiting import eventually


def test_a_submission_whose_answer_was_lost_queues_one_job(redis, claim):
    call = LeaseScript(redis).call

    def submit():
        return call("submit", "job", "default", "", "digest", "", "0", STEP.model_dump_json(), "data", "call")

    assert submit() == submit() == [b"queued", b"job"]
    assert place_of(redis, "job") == "queued"
    lease = claim("job")
    before = everything(redis)
    submit()
    assert everything(redis) == before
    lease.beat()


def test_who_waits_for_a_job_is_woken_by_each_that_is_queued(redis, submit, claim):
    with redis.pubsub(ignore_subscribe_messages=True) as woken:
        woken.subscribe(WAKE_CHANNEL)
        lease = claim(submit())
        lease.hand_back(Charge.DRAINED, "the worker stops")
        told = [eventually(lambda: woken.get_message(timeout=1.0))["data"] for _ in range(2)]
    assert told == [lease.job_id.encode()] * 2


def test_a_claim_takes_the_job_from_its_queue_and_counts_the_attempt(redis, submit, claim):
    job_id = submit()
    lease = claim(job_id)
    assert (lease.attempt, lease.kept) == (1, KeptPieces())
    assert place_of(redis, job_id) == "claimed"
    lease.hand_back(Charge.DRAINED, "the worker stops")
    assert claim(job_id).attempt == 2


def test_what_waits_is_seen_in_order_and_stays(leases, submit):
    job_ids = [submit() for _ in range(3)]
    [[first, second], []] = leases.peek(["default", "high"], 1, 5)
    assert [first.job_id, second.job_id] == job_ids[1:]
    assert first.problem == ""
    assert first.call
    assert 0 <= first.waited_s < 10
    assert len(leases.peek(["default"], 0, 5)[0]) == 3


def test_of_eight_threads_that_claim_a_job_one_gets_it(submit, claim):
    job_id = submit()
    with ThreadPoolExecutor(8) as threads:
        claimed = list(threads.map(lambda _: claim(job_id), range(8)))
    assert [lease.attempt for lease in claimed if lease] == [1]


@pytest.mark.parametrize("is_queued_again", [False, True])
def test_a_claim_whose_answer_was_lost_is_answered_again(redis, submit, is_queued_again):
    call, job_id = LeaseScript(redis).call, submit()
    first = call("claim", "default", job_id, "w", "nonce", 60_000)
    if is_queued_again:
        redis.rpush("rq:queue:default", job_id)
    assert first == call("claim", "default", job_id, "w", "nonce", 60_000) == [b"claimed", b"1", b""]
    assert call("claim", "default", job_id, "w", "another nonce", 60_000) == [b"gone"]
    assert place_of(redis, job_id) == "claimed"


def test_a_second_copy_of_a_running_job_is_removed_and_disturbs_nobody(redis, claim):
    lease = claim()
    redis.lpush("rq:queue:default", lease.job_id, lease.job_id)
    assert claim(lease.job_id) is None
    assert place_of(redis, lease.job_id) == "claimed"
    lease.finish(FINISHED, RESULT)


def test_a_copy_in_another_queue_does_not_run_beside_the_job(redis, claim):
    lease = claim()
    redis.rpush("rq:queue:high", lease.job_id)
    assert claim(lease.job_id, "high") is None
    assert redis.llen("rq:queue:high") == 0
    lease.beat()


def test_a_finished_job_never_runs_again(redis, claim):
    lease = claim()
    lease.finish(FINISHED, RESULT)
    redis.rpush("rq:queue:default", lease.job_id)
    redis.hset(f"rq:job:{lease.job_id}", "status", "queued")
    assert claim(lease.job_id) is None
    assert place_of(redis, lease.job_id) == "finished"
    assert rq_job(redis, lease.job_id).get_status() == JobStatus.FINISHED


@pytest.mark.parametrize("end", ["failed", "dead"])
def test_a_job_that_rq_requeues_runs_with_all_its_attempts(redis, claim, end, use_up):
    lease = claim()
    if end == "failed":
        lease.fail(FAILED, "refused")
    else:
        use_up(lease)
    rq_registry(FailedJobRegistry, redis).requeue(lease.job_id)
    again = claim(lease.job_id)
    assert again.attempt == (2 if end == "failed" else 4)
    assert again.hand_back(Charge.FATAL, "x") == Place.QUEUED
    assert redis.zcard(DEAD_KEY) == 0
    assert redis.llen(LOSSES_KEY.format(job_id=lease.job_id)) == 1
    assert place_of(redis, lease.job_id) == "queued"


def test_a_beat_keeps_the_lease_for_another_period(redis, claim):
    lease = claim()
    run_out(redis, lease)
    lease.beat()
    assert redis.zscore(LEASES_KEY, lease.job_id) / 1000 - redis.time()[0] == pytest.approx(LEASE_S, abs=5)


def test_a_beat_may_use_a_connection_of_its_own(redis, redis_url, claim):
    lease = claim()
    with Redis.from_url(redis_url) as own:
        lease.beat(own)
        own.delete(LEASES_KEY)
        with pytest.raises(LeaseLost):
            lease.beat(own)


@pytest.mark.parametrize("speak", SPEAK.values(), ids=SPEAK)
@pytest.mark.parametrize("now", ["queued", "claimed", "finished", "gone"])
def test_after_a_reap_the_old_attempt_has_no_say(redis, claim, reap, now, speak):
    lease = claim()
    reap(lease)
    if now in ("claimed", "finished"):
        successor = claim(lease.job_id)
        if now == "finished":
            successor.finish(FINISHED, RESULT)
    if now == "gone":
        redis.delete(f"rq:job:{lease.job_id}")
    before = everything(redis)
    with pytest.raises(LeaseLost, match=f"attempt 1 of job {lease.job_id}"):
        speak(lease)
    assert everything(redis) == before


@pytest.mark.parametrize("name", SPEAK)
def test_a_lease_that_nobody_has_taken_back_may_be_used_after_its_time(redis, claim, name):
    lease = claim()
    run_out(redis, lease)
    SPEAK[name](lease)


def test_what_is_kept_is_told_and_waits_for_the_next_attempt(redis, claim):
    lease = claim()
    lease.keep(KEPT, SAVED)
    lease.hand_back(Charge.DRAINED, "the worker stops")
    assert claim(lease.job_id).kept == KEPT
    assert SAVED in read_log(redis, lease.job_id)


def test_news_is_appended_in_order(redis, claim):
    lease = claim()
    lease.tell(STEP, SAVED)
    assert read_log(redis, lease.job_id)[-2:] == [STEP, SAVED]


def test_the_script_is_loaded_again_into_a_server_that_has_forgotten_it(redis, claim):
    lease = claim()
    redis.script_flush()
    lease.beat()


def test_times_are_the_servers_in_rqs_form(redis, claim):
    lease = claim()
    now = datetime.fromtimestamp(redis.time()[0], UTC)
    job = rq_job(redis, lease.job_id)
    for time in (job.enqueued_at, job.started_at, job.last_heartbeat):
        assert abs(time - now) < timedelta(seconds=10)


def test_a_job_handed_back_is_the_next_of_its_queue(redis, submit, claim):
    lease, other = claim(), submit()
    lease.hand_back(Charge.DRAINED, "the worker stops")
    assert redis.lrange("rq:queue:default", 0, -1) == [lease.job_id.encode(), other.encode()]


def test_the_third_fatal_loss_is_a_jobs_death(redis, claim, use_up):
    lease = claim()
    assert use_up(lease) == [Place.QUEUED, Place.QUEUED, Place.DEAD]
    assert place_of(redis, lease.job_id) == "dead"
    assert redis.zrange(DEAD_KEY, 0, -1) == [lease.job_id.encode()]
    assert Client(redis).job(lease.job_id).status().state == "dead"
    assert rq_job(redis, lease.job_id).get_status() == JobStatus.FAILED
    assert rq_registry(FailedJobRegistry, redis).get_job_ids() == [lease.job_id]
    assert redis.ttl(f"rq:job:{lease.job_id}") == pytest.approx(RECORD_TTL_S, abs=10)


def test_a_dead_job_tells_why_each_attempt_was_lost(redis, claim, reap):
    lease = claim()
    lease.hand_back(Charge.FATAL, 'rank 1 said "no"')
    claim(lease.job_id).hand_back(Charge.INTERRUPTED, "pod lost")
    claim(lease.job_id).hand_back(Charge.DRAINED, "not told")
    reap(claim(lease.job_id))
    claim(lease.job_id).hand_back(Charge.FATAL, "ünlucky")
    dead = read_log(redis, lease.job_id)[-1]
    assert isinstance(dead, Dead)
    assert dead.attempt == 5
    assert [(loss.attempt, loss.worker, loss.kind, loss.reason) for loss in dead.losses] == [
        (1, "w", "fatal", 'rank 1 said "no"'),
        (2, "w", "interrupted", "pod lost"),
        (4, "w", "fatal", "the lease ran out: w is gone"),
        (5, "w", "fatal", "ünlucky"),
    ]


def test_the_twentieth_interruption_is_a_jobs_death(claim):
    lease = claim()
    places = [lease.hand_back(Charge.INTERRUPTED, "pod lost")]
    places += [claim(lease.job_id).hand_back(Charge.INTERRUPTED, "pod lost") for _ in range(19)]
    assert places == [Place.QUEUED] * 19 + [Place.DEAD]


def test_an_attempt_that_dies_while_it_commits_has_not_been_in_vain(redis, claim, reap):
    lease = claim()
    lease.keep(KEPT, SAVED)
    lease.hand_back(Charge.FATAL, "first")
    for attempt in (2, 3):  # what the first has kept is all that there is to keep
        lease = claim(lease.job_id)
        assert lease.attempt == attempt
        lease.seal()
        assert reap(lease).queued == (lease.job_id,)
    losses = redis.lrange(LOSSES_KEY.format(job_id=lease.job_id), 0, -1)
    assert [Loss.model_validate_json(loss).kind for loss in losses] == ["fatal", "interrupted", "interrupted"]


def test_being_told_to_stop_is_held_against_no_job(redis, claim):
    lease = claim()
    lease.hand_back(Charge.DRAINED, "the worker stops")
    for _ in range(24):
        assert claim(lease.job_id).hand_back(Charge.DRAINED, "the worker stops") == Place.QUEUED
    assert claim(lease.job_id).attempt == 26
    assert redis.exists(LOSSES_KEY.format(job_id=lease.job_id)) == 0


def test_a_lost_attempt_is_told_with_its_charge(redis, claim):
    lease = claim()
    lease.hand_back(Charge.INTERRUPTED, "pod lost")
    assert read_log(redis, lease.job_id)[-1] == AttemptLost(attempt=1, reason="pod lost", charge="interrupted")


def test_a_lease_that_runs_out_counts_as_fatal_unless_the_attempt_has_kept_something(redis, claim, reap):
    lease = claim()
    reap(lease)
    second = claim(lease.job_id)
    second.keep(KEPT, SAVED)
    reap(second)
    reap(claim(lease.job_id))  # it has begun with what the second has kept, and added nothing
    third_fatal = claim(lease.job_id)
    charges = [event.charge for event in read_log(redis, lease.job_id) if isinstance(event, AttemptLost)]
    assert charges == ["fatal", "interrupted", "fatal"]
    assert reap(third_fatal).dead == (lease.job_id,)


def test_long_reasons_are_cut(redis, claim):
    lease = claim()
    lease.hand_back(Charge.FATAL, "x" * 100_000)
    assert redis.memory_usage(LOSSES_KEY.format(job_id=lease.job_id)) < 2 * MOST_REASON_LETTERS


def test_rq_sees_a_finished_job_and_its_result(redis, claim):
    lease = claim()
    lease.finish(FINISHED, RESULT)
    job = rq_job(redis, lease.job_id)
    assert job.get_status() == JobStatus.FINISHED
    assert job.latest_result().return_value == job.return_value() == RESULT
    assert job.latest_result().worker_name == "w"
    assert job.ended_at >= job.started_at
    assert rq_registry(FinishedJobRegistry, redis).get_job_ids() == [lease.job_id]
    assert rq_registry(StartedJobRegistry, redis).get_job_ids() == []
    assert job.get_executions() == []
    assert redis.ttl(f"rq:job:{lease.job_id}") == pytest.approx(RECORD_TTL_S, abs=10)
    assert read_log(redis, lease.job_id)[-1] == FINISHED


def test_rq_sees_a_failed_job_and_why(redis, claim):
    lease = claim()
    lease.fail(FAILED, "Traceback: refused")
    job = rq_job(redis, lease.job_id)
    assert job.get_status() == JobStatus.FAILED
    assert job.latest_result().exc_string == "Traceback: refused"
    assert rq_registry(FailedJobRegistry, redis).get_job_ids() == [lease.job_id]
    assert read_log(redis, lease.job_id)[-1] == FAILED


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_an_end_may_be_repeated_and_is_told_once(redis, claim, end):
    lease = claim()
    SPEAK[end](lease)
    before = everything(redis)
    SPEAK[end](lease)
    assert everything(redis) == before


def test_a_job_ends_one_way_only(redis, claim):
    lease = claim()
    lease.finish(FINISHED, RESULT)
    before = everything(redis)
    for name in ("fail", "hand_back", "keep", "beat", "tell"):
        with pytest.raises(LeaseLost):
            SPEAK[name](lease)
    assert everything(redis) == before


def test_rqs_command_shows_a_claimed_job_as_executing(redis_url, redis, claim):
    lease = claim()
    job = rq_job(redis, lease.job_id)
    assert (job.get_status(), job.worker_name) == (JobStatus.STARTED, "w")
    assert [execution.id for execution in job.get_executions()] == ["1"]
    assert "queue default 0, 1 executing, 0 finished, 0 failed" in rq_info(redis_url)
    lease.finish(FINISHED, RESULT)
    assert "queue default 0, 0 executing, 1 finished, 0 failed" in rq_info(redis_url)


def rq_info(redis_url):
    command = [Path(sys.executable).with_name("rq"), "info", "--raw", "--url", redis_url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_first_look_takes_nothing_for_one_lease(redis, submit):
    leases = Leases(redis)
    lease = claim_job(leases, submit())
    run_out(redis, lease)
    assert leases.reap().quiet_s == LEASE_S
    assert 0 < leases.reap().quiet_s <= LEASE_S
    lease.beat()
    redis.hset("h3:beacon", "quiet_until_ms", 0)
    assert leases.reap().queued == ()


def test_after_a_restart_of_the_server_nothing_is_taken_for_one_lease(redis_server):
    with Redis.from_url(redis_server.url) as redis:
        leases = Leases(redis)
        leases.reap()
        redis.hset("h3:beacon", "quiet_until_ms", 0)
        assert leases.reap().quiet_s == 0
        redis_server.stop()
        redis_server.start()
        assert leases.reap().quiet_s == LEASE_S


@pytest.mark.parametrize(("beats", "quiet_s"), [(1.8, 0), (2.2, LEASE_S)])
def test_after_two_beats_in_which_nobody_looked_nothing_is_taken_for_one_lease(redis, leases, beats, quiet_s):
    redis.hincrby("h3:beacon", "ms", -round(beats * leases.beat_s * 1000))
    assert leases.reap().quiet_s == quiet_s


def test_any_number_may_look_and_each_lease_is_taken_back_once(redis, leases, claim):
    held = [claim() for _ in range(20)]
    run_out(redis, *held)
    with ThreadPoolExecutor(8) as threads:
        taken = [job_id for reaped in threads.map(lambda _: leases.reap(), range(8)) for job_id in reaped.queued]
    assert sorted(taken) == sorted(lease.job_id for lease in held)
    assert {place_of(redis, lease.job_id) for lease in held} == {"queued"}


def test_a_call_takes_back_a_hundred_at_most_so_that_the_server_is_not_blocked(redis, leases, claim):
    held = [claim() for _ in range(101)]
    run_out(redis, *held)
    assert [len(leases.reap().queued) for _ in range(3)] == [100, 1, 0]


def test_the_lease_of_a_deleted_job_is_forgotten(redis, claim, reap):
    lease = claim()
    redis.delete(f"rq:job:{lease.job_id}")
    reaped = reap(lease)
    assert (reaped.queued, reaped.dead) == ((), ())
    assert redis.zcard(LEASES_KEY) == 0


def test_a_retried_job_has_its_attempts_and_what_was_kept(redis, leases, claim, use_up):
    lease = claim()
    lease.keep(KEPT, SAVED)
    use_up(lease)
    assert leases.retry_dead(lease.job_id)
    assert place_of(redis, lease.job_id) == "queued"
    assert redis.ttl(f"rq:job:{lease.job_id}") == -1
    assert rq_registry(FailedJobRegistry, redis).get_job_ids() == []
    again = claim(lease.job_id)
    assert (again.attempt, again.kept) == (4, KEPT)
    assert use_up(again)[-1] == Place.DEAD
    assert [loss.attempt for loss in read_log(redis, lease.job_id)[-1].losses] == [4, 5, 6]


def test_only_what_has_failed_can_be_retried(redis, leases, claim, submit):
    finished = claim()
    finished.finish(FINISHED, RESULT)
    before = everything(redis)
    assert not leases.retry_dead(finished.job_id)
    assert not leases.retry_dead("nonesuch")
    assert everything(redis) == before
    failed = claim()
    failed.fail(FAILED, "refused")
    assert leases.retry_dead(failed.job_id)
    assert not leases.retry_dead(failed.job_id)
    assert place_of(redis, failed.job_id) == "queued"


def test_a_dropped_job_leaves_nothing(redis, leases, claim, use_up):
    lease = claim()
    use_up(lease)
    assert leases.drop_dead(lease.job_id)
    assert not leases.drop_dead(lease.job_id)
    assert [key for key in redis.scan_iter() if lease.job_id.encode() in key] == []
    assert redis.zcard(DEAD_KEY) == redis.zcard("rq:failed:default") == 0


def test_a_living_job_cannot_be_dropped(redis, leases, claim, submit):
    before = claim().job_id, submit()
    assert not any(leases.drop_dead(job_id) for job_id in before)


def test_what_is_no_render_job_is_put_away_with_the_reason(redis, leases, submit):
    job_id = submit()
    [[waiting]] = leases.peek(["default"], 0, 1)
    leases.quarantine(waiting, "it calls os.system", Failed(attempt=0, reason="it calls os.system"), "w")
    assert place_of(redis, job_id) == "failed"
    assert redis.hgetall(QUARANTINE_KEY) == {job_id.encode(): b"it calls os.system"}
    assert rq_job(redis, job_id).latest_result().exc_string == "it calls os.system"
    assert read_log(redis, job_id)[-1].reason == "it calls os.system"


def test_a_quarantined_job_that_was_retried_cannot_be_dropped_while_it_runs(redis, leases, submit, claim):
    job_id = submit()
    leases.quarantine(Waiting(job_id, "default", "", b"", 0.0), "x", FAILED, "w")
    rq_registry(FailedJobRegistry, redis).requeue(job_id)
    lease = claim(job_id)
    assert not leases.drop_dead(job_id)
    lease.beat()


def test_a_running_or_finished_job_cannot_be_put_away(redis, leases, claim):
    running, finished = claim(), claim()
    finished.finish(FINISHED, RESULT)
    for lease in (running, finished):
        redis.rpush("rq:queue:default", lease.job_id)
        leases.quarantine(Waiting(lease.job_id, "default", "", b"", 0.0), "x", FAILED, "w")
    assert place_of(redis, running.job_id) == "claimed"
    assert place_of(redis, finished.job_id) == "finished"
    running.beat()


# --- how long machines were busy


def test_the_time_of_all_attempts_is_added_up_whichever_way_they_end(redis, leases, claim, submit, reap):
    job_id = submit()
    key = f"rq:job:{job_id}"

    def claim_for(seconds):
        lease = claim(job_id)
        redis.hincrby(key, "h3_claimed_ms", -1000 * seconds)
        return lease

    def busy_s():
        return round(int(redis.hget(key, "h3_busy_ms")) / 1000)

    claim_for(100).hand_back("drained", "told to stop")
    assert busy_s() == 100
    reap(claim_for(200))  # its lease is set back to long ago
    assert busy_s() == 100
    lease = claim_for(3600)
    redis.zadd("h3:leases", {job_id: int(redis.hget(key, "h3_claimed_ms")) + 60_000})  # a worker that died 59 min ago
    leases.reap()
    assert busy_s() == 160
    claim_for(50).finish(FINISHED, RESULT)
    assert busy_s() == 210
    assert redis.hget(key, "h3_claimed_ms") is None
    assert lease.attempt == 3


def test_the_time_of_an_attempt_that_is_canceled_counts(redis, claim, submit):
    job_id = submit()
    lease = claim(job_id)
    redis.hincrby(f"rq:job:{job_id}", "h3_claimed_ms", -30_000)
    lease.cancel(Canceled(attempt=1))
    assert round(int(redis.hget(f"rq:job:{job_id}", "h3_busy_ms")) / 1000) == 30


def test_when_a_job_ended_is_known_until_it_is_retried(redis, leases, claim, use_up):
    lease = claim()
    use_up(lease)
    assert redis.hget(f"rq:job:{lease.job_id}", "h3_ended_ms") is not None
    leases.retry_dead(lease.job_id)
    assert redis.hget(f"rq:job:{lease.job_id}", "h3_ended_ms") is None
