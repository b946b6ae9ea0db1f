"""Which job is next, on a real Redis, and what becomes of what is no job."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from jobs.client import Client
from jobs.events import Failed
from jobs.lease import LEASES_KEY, MOST_CALL_BYTES, QUARANTINE_KEY, Leases
from jobs.offers import Offer
from jobs.queues import QueueName
from jobs.request import Mode, Precision
from tests.jobs.leasing import without_ids
from tests.worker.calls import FIELDS, call, packed, push
from worker.dequeue import WINDOW, Dequeue

LONGEST_WAIT_S = 1800.0
SMALL_OFFER = Offer(modes=(Mode.ULYSSES,), precisions=(Precision.BF16,), most_pixels=64 * 64 * 22)
SMALL = {"prompt": "a red kite", "width": 64, "height": 64, "frames": 22}
LARGE = {**SMALL, "frames": 39}


@pytest.fixture
def submit(redis):
    """Queue a job; gives its id."""
    client = Client(redis)

    def submit(queue=QueueName.DEFAULT, waited_s=0.0, request=SMALL):
        job_id = client.submit(request, queue=queue).id
        if waited_s:
            redis.hset(f"rq:job:{job_id}", "h3_queued_ms", round((time.time() - waited_s) * 1000))
        return job_id

    return submit


@pytest.fixture
def dequeue(redis):
    return new_dequeue(redis)


def new_dequeue(redis, offer=SMALL_OFFER, worker="w1"):
    return Dequeue(Leases(redis), list(QueueName), offer, worker, longest_wait_s=LONGEST_WAIT_S)


def take_all(dequeue):
    taken = iter(dequeue.take, None)
    return [each.lease.job_id for each in taken]


def queued(redis):
    return [job_id.decode() for queue in QueueName for job_id in redis.lrange(f"rq:queue:{queue}", 0, -1)]


def put_away(redis):
    return {
        job_id.decode("utf-8", "surrogateescape"): reason.decode()
        for job_id, reason in redis.hgetall(QUARANTINE_KEY).items()
    }


# --- order


def test_empty_queues_give_nothing(dequeue):
    assert dequeue.take() is None


def test_a_job_is_taken_with_its_request_and_its_lease(dequeue, submit, redis):
    job_id = submit(request={**SMALL, "seed": 7})
    taken = dequeue.take()
    assert (taken.lease.job_id, taken.lease.queue, taken.lease.attempt) == (job_id, "default", 1)
    assert (taken.request.seed, taken.request.prompt) == (7, "a red kite")
    assert queued(redis) == []
    assert redis.zrange(LEASES_KEY, 0, -1) == [job_id.encode()]


def test_queues_are_served_in_their_order_and_each_from_its_head(dequeue, submit):
    batch, default, high = ([submit(queue) for _ in range(3)] for queue in reversed(QueueName))
    assert take_all(dequeue) == [*high, *default, *batch]


def test_a_worker_takes_nothing_from_queues_that_it_does_not_serve(redis, submit):
    job_id = submit(QueueName.HIGH)
    batch_only = Dequeue(Leases(redis), [QueueName.BATCH], SMALL_OFFER, "w1", longest_wait_s=LONGEST_WAIT_S)
    assert batch_only.take() is None
    assert queued(redis) == [job_id]


def test_a_job_that_has_waited_too_long_is_next(dequeue, submit):
    high = submit(QueueName.HIGH)
    patient = submit(QueueName.BATCH, waited_s=LONGEST_WAIT_S - 60)
    too_long = submit(QueueName.BATCH, waited_s=LONGEST_WAIT_S + 1)
    assert take_all(dequeue) == [too_long, high, patient]


def test_of_those_that_have_waited_too_long_the_first_queue_is_first(dequeue, submit):
    new = submit(QueueName.HIGH)
    batch = submit(QueueName.BATCH, waited_s=100 * LONGEST_WAIT_S)
    default = submit(QueueName.DEFAULT, waited_s=2 * LONGEST_WAIT_S)
    assert take_all(dequeue) == [default, batch, new]


def test_waiting_is_counted_from_the_first_time_that_a_job_was_queued(dequeue, submit, redis):
    """An attempt that is handed back must not put its job at the end of the line."""
    job_id = submit(QueueName.BATCH, waited_s=LONGEST_WAIT_S + 1)
    lease = dequeue.take().lease
    submit(QueueName.HIGH)
    lease.hand_back("drained", "the worker was told to stop")
    assert dequeue.take().lease.job_id == job_id


NO_TIMES = ["", "nan", "inf", "-inf", "1e999", "-1e308", "0x10", "soon", "-5", b"\xff", "9" * 400]


@pytest.mark.parametrize("queued_ms", NO_TIMES)
def test_a_time_that_is_none_does_no_harm(dequeue, submit, redis, queued_ms):
    job_id, other = submit(), submit()
    redis.hset(f"rq:job:{job_id}", "h3_queued_ms", queued_ms)
    assert sorted(take_all(dequeue)) == sorted([job_id, other])


# --- what this worker cannot serve


@pytest.mark.parametrize(
    "request_",
    [LARGE, {**SMALL, "mode": "tensor"}, {**SMALL, "precision": "nvfp4"}],
    ids=["memory", "mode", "precision"],
)
def test_a_job_that_this_worker_cannot_serve_is_left_where_it_is(dequeue, submit, redis, request_):
    first, other, last = submit(), submit(request=request_), submit()
    assert take_all(dequeue) == [first, last]
    assert queued(redis) == [other]
    assert put_away(redis) == {}
    assert redis.hget(f"rq:job:{other}", "h3_attempts") is None
    assert new_dequeue(redis, Offer()).take().lease.job_id == other


@pytest.mark.parametrize("in_front", [WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5])
def test_any_number_of_jobs_for_others_may_stand_in_front(dequeue, submit, redis, in_front):
    others = [submit(request=LARGE) for _ in range(in_front)]
    ours = submit()
    assert dequeue.take().lease.job_id == ours
    assert dequeue.take() is None
    assert queued(redis) == others


@pytest.mark.parametrize("in_front", [WINDOW - 1, WINDOW, 2 * WINDOW])
def test_jobs_for_others_in_front_change_no_order(dequeue, submit, in_front):
    """Else what is behind them would wait for as long as a later queue has anything."""
    for _ in range(in_front):
        submit(QueueName.HIGH, request=LARGE)
    ours = [submit(QueueName.HIGH), submit(QueueName.DEFAULT), submit(QueueName.BATCH)]
    assert take_all(dequeue) == ours


def test_jobs_for_others_in_front_do_not_hide_one_that_has_waited_too_long(dequeue, submit):
    for _ in range(WINDOW):
        submit(QueueName.BATCH, waited_s=LONGEST_WAIT_S + 1, request=LARGE)
    too_long = submit(QueueName.BATCH, waited_s=LONGEST_WAIT_S + 1)
    high, batch = submit(QueueName.HIGH), submit(QueueName.BATCH)
    assert take_all(dequeue) == [too_long, high, batch]


# --- what is no job

NO_RECORDS = {
    "nothing": lambda redis: None,
    "string": lambda redis: redis.set("rq:job:a", "x"),
    "list": lambda redis: redis.rpush("rq:job:a", "x"),
    "set": lambda redis: redis.sadd("rq:job:a", "x"),
    "sorted set": lambda redis: redis.zadd("rq:job:a", {"x": 1}),
    "stream": lambda redis: redis.xadd("rq:job:a", {"data": call()}),
}
NO_CALLS = {
    "none": ({"status": "queued"}, "no readable call"),
    "another": ({"data": call("os.system", None, ["true"])}, "job calls 'os.system'"),
    "malformed": ({"data": call(request={"prompt": "x"})}, "width is missing"),
    "half a character": ({"data": call(request={**FIELDS, "\ud800": 1})}, "unicode"),
    "long": ({"data": b"x" * (MOST_CALL_BYTES + 1)}, f"the call has {MOST_CALL_BYTES + 1} bytes"),
    "huge": ({"data": b"x" * (32 << 20)}, f"the call has {32 << 20} bytes"),
    "huge when unpacked": ({"data": packed(b" " * (64 << 20))}, "no readable call"),
    "with a long reason": ({"data": call(request={**FIELDS, "mode": "x" * 900_000})}, "mode 'xxx"),
}
NO_IDS = ["", "a/b", "../../etc/passwd", "a\n", "a.mp4", "凧", b"\xff\x00\xfe", b"\xed\xa0\x80"]


def assert_put_away(redis, dequeue, job_id, reason, good):
    assert dequeue.take().lease.job_id == good
    assert dequeue.take() is None
    [(name, said)] = put_away(redis).items()
    assert name == (job_id if isinstance(job_id, str) else job_id.decode("utf-8", "surrogateescape"))
    assert reason in said
    assert queued(redis) == []
    assert redis.zrange(LEASES_KEY, 0, -1) == [good.encode()]


@pytest.mark.parametrize("kind", NO_RECORDS)
def test_an_id_without_a_record_is_put_away_and_the_next_job_is_taken(dequeue, submit, redis, kind):
    NO_RECORDS[kind](redis)
    push(redis, "high", "a")
    assert_put_away(redis, dequeue, "a", "the job has no record", submit())


@pytest.mark.parametrize("kind", NO_CALLS)
def test_a_record_without_our_call_is_put_away_and_the_next_job_is_taken(dequeue, submit, redis, kind):
    record, reason = NO_CALLS[kind]
    push(redis, "high", "a", record)
    assert_put_away(redis, dequeue, "a", reason, submit())


@pytest.mark.parametrize("has_record", [True, False], ids=["with a record", "without"])
@pytest.mark.parametrize("job_id", NO_IDS, ids=ascii)
def test_an_id_that_is_none_is_put_away_and_the_next_job_is_taken(dequeue, submit, redis, job_id, has_record):
    push(redis, "high", job_id, {"data": call()} if has_record else None)
    assert_put_away(redis, dequeue, job_id, "the job id" if has_record else "the job has no record", submit())


def test_an_id_that_is_too_long_is_put_away_by_its_beginning(dequeue, submit, redis):
    push(redis, "high", "x" * 1_000_000, None)
    good = submit()
    assert dequeue.take().lease.job_id == good
    assert put_away(redis) == {"x" * 200: "the id has 1000000 bytes"}
    assert queued(redis) == []


def test_a_refused_job_that_has_a_record_fails_with_the_reason(dequeue, redis):
    push(redis, "high", "a", {"data": call("os.system"), "status": "queued"})
    assert dequeue.take() is None
    job = Client(redis).job("a")
    assert job.status().state == "failed"
    assert without_ids(job.news()) == [Failed(attempt=0, reason=put_away(redis)["a"])]
    assert redis.zrange("rq:failed:high", 0, -1) == [b"a"]


def test_a_refused_job_keeps_little_in_redis_whatever_it_carries(dequeue, redis):
    push(redis, "high", "a", {"data": call(request={**FIELDS, "mode": "x" * 900_000})})
    assert dequeue.take() is None
    for key in ("h3:quarantine", "h3:events:a", "rq:results:a"):
        assert redis.memory_usage(key) < 20_000, key


def test_a_job_that_runs_is_left_alone_though_somebody_queues_rubbish_under_its_id(dequeue, submit, redis):
    submit()
    lease = dequeue.take().lease
    push(redis, "high", lease.job_id, {"data": call("os.system")})
    assert dequeue.take() is None
    assert queued(redis) == []
    assert put_away(redis) == {}
    lease.beat()
    assert Client(redis).job(lease.job_id).status().state == "running"


def test_an_id_that_is_queued_many_times_is_put_away_once_and_for_all(dequeue, submit, redis):
    for queue in QueueName:
        for _ in range(3):
            push(redis, queue, "a")
    good = submit()
    assert take_all(dequeue) == [good]
    assert queued(redis) == []
    assert set(put_away(redis)) == {"a"}


@pytest.mark.parametrize("many", [WINDOW, WINDOW + 1, 5 * WINDOW])
def test_any_amount_of_rubbish_in_front_changes_no_order(dequeue, submit, redis, many):
    for number in range(many):
        push(redis, "high", f"rubbish-{number}")
    good = [submit(QueueName.HIGH), *(submit(QueueName.HIGH) for _ in range(WINDOW)), submit(QueueName.DEFAULT)]
    assert take_all(dequeue) == good
    assert len(put_away(redis)) == many


def test_jobs_that_are_over_are_passed_by_whatever_their_number(dequeue, submit, redis):
    """As RQ's own `cancel` leaves them when it comes too late for the queue."""
    over = [submit() for _ in range(2 * WINDOW)]
    for job_id in over:
        redis.hset(f"rq:job:{job_id}", "status", "canceled")
    good = [submit() for _ in range(3)]
    assert take_all(dequeue) == good
    assert queued(redis) == []
    assert put_away(redis) == {}


@pytest.mark.parametrize("kind", ["string", "hash", "set", "zset"])
def test_a_queue_that_is_no_list_is_moved_away(dequeue, submit, redis, kind):
    make = {
        "string": lambda key: redis.set(key, "x"),
        "hash": lambda key: redis.hset(key, "a", "b"),
        "set": lambda key: redis.sadd(key, "a"),
        "zset": lambda key: redis.zadd(key, {"a": 1}),
    }
    make[kind]("rq:queue:high")
    good = [submit(QueueName.DEFAULT)]
    assert take_all(dequeue) == good
    assert redis.type("h3:not-a-queue:high").decode() == kind
    assert Client(redis).submit(SMALL, queue="high").id == dequeue.take().lease.job_id


def test_records_that_are_no_numbers_do_not_keep_a_good_job_from_being_taken(dequeue, redis):
    times = {"created_at": "yesterday", "enqueued_at": b"\xff", "timeout": "nan", "h3_queued_ms": "soon"}
    counters = {"h3_attempts": "nan", "h3_fatal": b"\xff\x00", "h3_interruptions": "-inf", "h3_mark": "1e400"}
    rubbish = {**times, **counters, "status": "?", "origin": b"\xff", "h3_kept": "{", "h3_lease": "x", "meta": b"\x80."}
    push(redis, "high", "a", {"data": call(request={**SMALL, "steps": 2, "seed": 1}), **rubbish})
    taken = dequeue.take()
    assert (taken.lease.job_id, taken.lease.attempt) == ("a", 1)
    taken.lease.beat()
    assert taken.lease.hand_back("fatal", "lost") == "queued"


def test_keys_of_wrong_types_around_a_job_do_not_keep_it_from_being_refused(dequeue, submit, redis):
    for key in ("h3:events:a", "rq:results:a", "rq:failed:high", "rq:wip:high"):
        redis.set(key, "x")
    push(redis, "high", "a", {"data": call("os.system")})
    good = submit()
    assert take_all(dequeue) == [good]
    assert set(put_away(redis)) == {"a"}


# --- several workers


def test_two_workers_never_take_the_same_job(redis_url, submit, redis):
    jobs = [submit(queue) for _ in range(30) for queue in QueueName]
    for number in range(100):
        push(redis, "high", f"rubbish-{number}", {"data": packed("[]")})

    def work(worker):
        with Redis.from_url(redis_url) as own:
            return take_all(new_dequeue(own, worker=worker))

    with ThreadPoolExecutor(3) as pool:
        shares = list(pool.map(work, ["w1", "w2", "w3"]))
    while rest := take_all(new_dequeue(redis)):
        shares.append(rest)
    assert sorted(job_id for share in shares for job_id in share) == sorted(jobs)
    assert len([share for share in shares[:3] if share]) > 1  # or it proves nothing
    assert len(put_away(redis)) == 100
    assert queued(redis) == []
    assert {redis.hget(f"rq:job:{job_id}", "h3_attempts") for job_id in jobs} == {b"1"}
