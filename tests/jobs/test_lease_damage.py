"""What others do to our Redis: RQ's tools, an administrator, whoever can write there. It may cost time, but no job."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError, ResponseError
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry

from jobs.client import Client
from jobs.errors import RedisUnavailable
from jobs.lease import LEASE_S, LEASES_KEY, LOSSES_KEY, QUARANTINE_KEY, Charge, Leases, Place
from jobs.pieces import KeptPieces
from tests.jobs.leasing import (
    FAILED,
    FINISHED,
    REQUEST,
    RESULT,
    SPEAK,
    claim_job,
    everything,
    place_of,
    rq_job,
    rq_registry,
    run_out,
)

NOT_A_NUMBER = ["", "many", "-1", "1e400", "nan", "99999999999999999999"]


def test_a_job_that_a_tool_of_rq_has_canceled_is_not_run(redis, submit, claim):
    job_id = submit()
    rq_job(redis, job_id).cancel()
    redis.rpush("rq:queue:default", job_id)
    assert claim(job_id) is None
    assert redis.llen("rq:queue:default") == 0


@pytest.mark.parametrize("record", ["none", "not a hash"])
def test_an_id_without_a_record_is_told_and_not_claimed(redis, leases, record):
    redis.rpush("rq:queue:default", "x")
    if record != "none":
        redis.set("rq:job:x", record)
    [[waiting]] = leases.peek(["default"], 0, 10)
    assert waiting.problem == "the job has no record"
    assert leases.claim(waiting, "w") is None
    assert redis.llen("rq:queue:default") == 0


@pytest.mark.parametrize("field", ["h3_attempts", "h3_mark", "h3_began", "h3_fatal", "h3_interruptions", "h3_kept"])
@pytest.mark.parametrize("value", NOT_A_NUMBER)
def test_fields_that_somebody_has_overwritten_cost_no_job(redis, submit, claim, reap, field, value):
    job_id = submit()
    for attempt in (1, 2):
        redis.hset(f"rq:job:{job_id}", field, value)
        lease = claim(job_id)
        assert (lease.attempt, lease.kept) == (attempt if field != "h3_attempts" else 1, KeptPieces())
        redis.hset(f"rq:job:{job_id}", field, value)
        assert reap(lease).queued == (job_id,)
        assert place_of(redis, job_id) == "queued"


@pytest.mark.parametrize("field", ["origin", "worker_name", "h3_lease", "status"])
@pytest.mark.parametrize("value", [None, "nan"])
def test_a_running_job_whose_fields_are_damaged_is_taken_back(redis, claim, reap, field, value):
    lease = claim()
    redis.hdel(f"rq:job:{lease.job_id}", field)
    if value:
        redis.hset(f"rq:job:{lease.job_id}", field, value)
    assert reap(lease).queued == (lease.job_id,)
    queue = "nan" if field == "origin" and value else "default"
    assert place_of(redis, lease.job_id, queue) == "queued"
    assert claim(lease.job_id, queue).attempt == 2


def test_readers_of_rqs_registry_do_nothing_to_a_running_job(redis, claim):
    lease = claim()
    run_out(redis, lease)
    before = everything(redis)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: rq_registry(StartedJobRegistry, redis).get_job_ids(), range(32)))
    assert found == [[lease.job_id]] * 32
    assert everything(redis) == before


@pytest.mark.parametrize("value", [*NOT_A_NUMBER, "4102444800000"])
@pytest.mark.parametrize("field", ["ms", "quiet_until_ms"])
def test_a_damaged_beacon_stops_the_reaper_for_one_lease_at_most(redis, leases, field, value):
    redis.hset("h3:beacon", field, value)
    assert leases.reap().quiet_s <= LEASE_S


@pytest.mark.parametrize("job_id", [b"\xff\xfe", b"x" * 100_000, b"", b"a\nb: c"])
def test_rubbish_in_a_queue_is_put_away(redis, leases, job_id):
    redis.rpush("rq:queue:default", job_id)
    [[waiting]] = leases.peek(["default"], 0, 1)
    leases.quarantine(waiting, waiting.problem, FAILED, "w")
    assert redis.llen("rq:queue:default") == 0
    assert redis.hkeys(QUARANTINE_KEY) == [job_id[:200]]


def test_a_call_that_is_too_big_is_not_read(redis, leases, submit):
    redis.hset(f"rq:job:{submit()}", "data", "x" * 300_000)
    [[waiting]] = leases.peek(["default"], 0, 1)
    assert (waiting.problem, waiting.call) == ("the call has 300000 bytes", b"")


def test_records_of_runs_that_are_over_are_removed(redis, leases, claim):
    lease, gone = claim(), claim()
    redis.delete(f"rq:job:{gone.job_id}")
    redis.zadd("rq:wip:default", {f"{lease.job_id}:7": 4102444800, "no-colon": 1})
    assert leases.sweep(["default"]) == 3
    assert redis.zrange("rq:wip:default", 0, -1) == [f"{lease.job_id}:1".encode()]
    assert leases.sweep(["default"]) == 0


def test_workers_whose_record_has_expired_are_forgotten(redis, leases):
    for workers in ("rq:workers", "rq:workers:default"):
        redis.sadd(workers, "rq:worker:alive", "rq:worker:gone")
    redis.hset("rq:worker:alive", "state", "idle")
    leases.sweep(["default"])
    assert redis.smembers("rq:workers") == redis.smembers("rq:workers:default") == {b"rq:worker:alive"}


def test_a_job_that_a_worker_of_rq_has_taken_and_not_begun_is_queued_again(redis, leases, submit, claim):
    first, second = submit(), submit()
    redis.lmove("rq:queue:default", "rq:queue:default:intermediate", "LEFT", "RIGHT")
    assert leases.sweep(["default"]) == 1
    assert redis.lrange("rq:queue:default", 0, -1) == [first.encode(), second.encode()]
    assert redis.exists("rq:queue:default:intermediate") == 0
    assert claim(first).attempt == 1


@pytest.mark.parametrize("now", ["queued", "claimed", "finished", "gone"])
def test_what_such_a_worker_has_left_of_another_job_is_removed(redis, leases, submit, claim, now):
    job_id = submit()
    lease = claim(job_id) if now in ("claimed", "finished") else None
    if now == "finished":
        lease.finish(FINISHED, RESULT)
    if now == "gone":
        redis.delete(f"rq:job:{job_id}", "rq:queue:default")
    redis.rpush("rq:queue:default:intermediate", job_id, job_id)
    leases.sweep(["default"])
    assert redis.exists("rq:queue:default:intermediate") == 0
    if now == "gone":
        assert redis.llen("rq:queue:default") == 0
    else:
        assert place_of(redis, job_id) == now


def test_a_finished_job_that_a_reader_of_rq_took_for_abandoned_is_mended(redis, leases, claim):
    lease = claim()
    lease.finish(FINISHED, RESULT)
    redis.zadd("rq:wip:default", {f"{lease.job_id}:1": 1})  # as it is between two writes of RQ's own worker
    rq_registry(StartedJobRegistry, redis).get_job_ids()
    assert rq_job(redis, lease.job_id).get_status() == JobStatus.FAILED
    assert leases.sweep(["default"]) == 1
    assert rq_job(redis, lease.job_id).get_status() == JobStatus.FINISHED
    assert rq_registry(FailedJobRegistry, redis).get_job_ids() == []
    assert Client(redis).job(lease.job_id).status().state == "finished"


@pytest.mark.parametrize("speak", SPEAK.values(), ids=SPEAK)
def test_full_memory_leaves_a_running_job_in_one_place(redis_server, speak):
    with Redis.from_url(redis_server.url) as redis:
        lease = claim_job(Leases(redis), Client(redis).submit(REQUEST).id)
        before = everything(redis)
        redis.config_set("maxmemory", "1")
        try:
            speak(lease)
        except OutOfMemoryError:
            assert everything(redis) == before
        place_of(redis, lease.job_id)
        redis.config_set("maxmemory", "0")
        if place_of(redis, lease.job_id) == "claimed":
            lease.finish(FINISHED, RESULT)


def test_full_memory_refuses_a_job_whole_and_leaves_a_waiting_one_in_one_place(redis_server):
    with Redis.from_url(redis_server.url) as redis:
        client, leases = Client(redis), Leases(redis)
        job_id = client.submit(REQUEST).id
        before = everything(redis)
        redis.config_set("maxmemory", "1")
        with pytest.raises(RedisUnavailable, match="memory"):
            client.submit(REQUEST, idempotency_key="k")
        with pytest.raises(OutOfMemoryError):
            leases.reap()
        assert everything(redis) == before
        lease = claim_job(leases, job_id)
        assert place_of(redis, job_id) == "claimed"
        assert lease.hand_back(Charge.DRAINED, "the worker stops") == Place.QUEUED
        assert place_of(redis, job_id) == "queued"


@pytest.mark.parametrize(
    "key",
    [
        "h3:dead",
        "h3:quarantine",
        "h3:events:{}",
        "h3:losses:{}",
        "rq:results:{}",
        "rq:executions:{}",
        "rq:execution:{}:1",
        "rq:wip:default",
        "rq:failed:default",
        "rq:finished:default",
        "rq:queue:default",
        "rq:queue:default:intermediate",
    ],
)
def test_a_key_of_a_wrong_type_costs_no_job(redis, leases, submit, claim, reap, key):
    job_id = submit()
    lease = claim(job_id)
    redis.set(key.format(job_id), "rubbish")
    reap(lease)
    assert place_of(redis, job_id) == "queued"
    leases.sweep(["default"])
    assert [claim(job_id).hand_back(Charge.FATAL, "x") for _ in range(2)] == [Place.QUEUED, Place.DEAD]
    assert place_of(redis, job_id) == "dead"
    assert leases.retry_dead(job_id)
    claim(job_id).finish(FINISHED, RESULT)
    assert place_of(redis, job_id) == "finished"


def test_a_queue_that_is_no_list_is_moved_away_for_a_new_job(redis, submit, leases):
    redis.set("rq:queue:default", "rubbish")
    redis.set("rq:queues", "rubbish")
    job_id = submit()
    assert place_of(redis, job_id) == "queued"
    assert redis.get("h3:not-a-queue:default") == b"rubbish"


def test_leases_of_a_wrong_type_stop_everything_and_cost_no_job(redis, leases, submit, claim):
    job_id = submit()
    redis.set(LEASES_KEY, "rubbish")
    before = everything(redis)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        claim(job_id)
    assert everything(redis) == before


def test_losses_that_somebody_has_overwritten_cost_no_job(redis, claim, use_up):
    lease = claim()
    redis.rpush(LOSSES_KEY.format(job_id=lease.job_id), "rubbish")
    use_up(lease)
    assert place_of(redis, lease.job_id) == "dead"
