import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from jobs.client import Client
from jobs.errors import JobFailed, JobNotFound, KeyConflict, RedisUnavailable, RequestInvalid
from jobs.events import EventLog, Failed, Queued, Started, StepDone
from jobs.offers import Offer
from jobs.progress import describe
from jobs.queues import JOB_FUNCTION, QueueName
from jobs.request import Mode
from jobs.workers import forget_worker, pause_queue, resume_queue, write_worker
from tests.jobs.leasing import FINISHED, KEPT, RESULT, SAVED
from tests.jobs.records import record


@pytest.fixture
def client(redis):
    return Client(redis)


def test_a_submitted_job_is_one_that_any_rq_client_can_read(client, redis):
    handle = client.submit({"prompt": "a red kite", "seconds": 1.0, "seed": 3}, queue=QueueName.HIGH)
    job = Job.fetch(handle.id, connection=redis, serializer=JSONSerializer)
    assert job.func_name == JOB_FUNCTION
    assert job.origin == "high"
    assert job.kwargs["request"]["frames"] == 39
    assert "kite" not in job.description  # RQ writes descriptions to logs
    assert redis.lrange("rq:queue:high", 0, -1) == [handle.id.encode()]
    assert handle.status() == "queued"


def test_the_reply_tells_what_sizes_snapped_to(client):
    request = client.submit({"prompt": "a red kite", "aspect": "1:1", "short_side": 100, "seconds": 1.2}).request()
    assert (request.width, request.height, request.frames) == (96, 96, 39)


def test_a_bad_request_queues_nothing(client, redis):
    with pytest.raises(RequestInvalid):
        client.submit({"prompt": "x", "frames": 40})
    assert redis.keys() == []


def test_events_replay_from_the_first_and_end_with_the_last(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    log = EventLog(redis)
    told = [Started(attempt=1, worker="w"), StepDone(step=1, steps=2, sigma=1.0, seconds=0.1), FINISHED]
    for event in told:
        log.append(handle.id, event)
    events = list(handle.events(timeout_s=5))
    assert isinstance(events[0], Queued)
    assert events[1:] == told == handle.news()[1:]
    assert handle.wait(timeout_s=5) == FINISHED


def test_waiting_for_a_failed_job_raises_its_reason(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    EventLog(redis).append(handle.id, Failed(attempt=2, reason="the store is full"))
    with pytest.raises(JobFailed, match="failed in attempt 2: the store is full"):
        handle.wait(timeout_s=5)


def test_waiting_ends_in_time_and_says_where_to_look(client):
    handle = client.submit({"prompt": "a red kite"})
    with pytest.raises(TimeoutError, match=f"h3render status {handle.id}"):
        handle.wait(timeout_s=0.05)


@pytest.mark.parametrize("status", ["finished", "failed", "canceled"])
def test_following_ends_when_the_job_has_ended_and_nobody_told_it(client, redis, status):
    handle = client.submit({"prompt": "a red kite"})
    redis.hset(f"rq:job:{handle.id}", "status", status)
    assert [event.kind for event in handle.events(timeout_s=20)] == ["queued"]
    with pytest.raises(JobFailed, match="stop before its end"):
        handle.wait(timeout_s=20)


def test_following_ends_when_the_record_is_gone(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    redis.delete(f"rq:job:{handle.id}")
    assert [event.kind for event in handle.events(timeout_s=20)] == ["queued"]


def test_a_kind_of_event_that_only_a_newer_version_knows_is_named_and_passed_over(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    redis.xadd(f"h3:events:{handle.id}", {"event": '{"kind": "teleported", "where": "moon"}'})
    EventLog(redis).append(handle.id, FINISHED)
    told = list(handle.events(timeout_s=5))
    assert [event.kind for event in told] == ["queued", "unknown", "finished"]
    assert "'teleported', version 1" in describe(told[1])
    assert handle.news() == told


def test_an_unknown_job_is_named(client):
    with pytest.raises(JobNotFound, match="no job nonesuch"):
        client.job("nonesuch")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://user:hunter2@127.0.0.1:1/0", "Redis at redis://127.0.0.1:1/0 does not answer"),
        ("http://127.0.0.1", "http://127.0.0.1 is not a Redis URL"),
    ],
)
def test_a_redis_that_does_not_answer_is_named_without_its_password(url, message):
    with pytest.raises(RedisUnavailable) as refusal:
        Client.open(url)
    assert message in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_wrong_password_is_told_apart_from_silence(redis_server):
    with Redis.from_url(redis_server.url) as redis:
        redis.config_set("requirepass", "right")
        with pytest.raises(RedisUnavailable, match="refuses us"):
            Client.open(redis_server.url)


def test_events_are_json_that_other_programs_can_read(client, redis):
    handle = client.submit({"prompt": "a red kite", "seed": 1})
    [(_, fields)] = redis.xrange(f"h3:events:{handle.id}")
    assert json.loads(fields[b"event"])["kind"] == "queued"


def test_submitting_again_with_the_same_key_gives_the_same_job(client, redis):
    request = {"prompt": "a red kite"}  # its seed is drawn once
    first = client.submit(request, idempotency_key="order 7")
    again = client.submit(request, idempotency_key="order 7")
    assert (again.id, again.request()) == (first.id, first.request())
    assert redis.lrange("rq:queue:default", 0, -1) == [first.id.encode()]
    assert [event.kind for event in first.news()] == ["queued"]
    assert client.submit(request, idempotency_key="order 8").id != first.id


@pytest.mark.parametrize("change", [{"prompt": "a blue kite"}, {"seed": 2}, {"queue": "high"}])
def test_a_key_stands_for_one_request_in_one_queue(client, redis, change):
    asked = {"prompt": "a red kite", "seed": 1} | change
    queue = asked.pop("queue", "default")
    first = client.submit({"prompt": "a red kite", "seed": 1}, idempotency_key="order 7")
    with pytest.raises(KeyConflict, match=f"'order 7' stands for another request, job {first.id}"):
        client.submit(asked, queue=queue, idempotency_key="order 7")
    assert redis.llen("rq:queue:default") + redis.llen("rq:queue:high") == 1


def test_a_key_used_by_eight_threads_at_once_gives_one_job(client, redis):
    with ThreadPoolExecutor(8) as threads:
        handles = threads.map(lambda _: client.submit({"prompt": "a red kite"}, idempotency_key="order 7"), range(32))
    [job_id] = {handle.id for handle in handles}
    assert redis.lrange("rq:queue:default", 0, -1) == [job_id.encode()]


def test_a_key_gives_the_job_also_after_its_end_and_a_new_one_when_it_is_forgotten(client, redis, claim):
    first = client.submit({"prompt": "a red kite"}, idempotency_key="order 7")
    claim(first.id).finish(FINISHED, RESULT)
    assert client.submit({"prompt": "a red kite"}, idempotency_key="order 7").id == first.id
    redis.delete(f"rq:job:{first.id}")
    second = client.submit({"prompt": "a red kite"}, idempotency_key="order 7")
    assert second.id != first.id
    assert second.status() == "queued"


def test_a_waiting_job_says_what_it_waits_for(client, redis, claim):
    handle = client.submit({"prompt": "a red kite", "mode": "tensor"})
    assert handle.waiting_for() == "waiting: no worker is alive"
    write_worker(redis, record(redis, offer=Offer(modes=(Mode.ULYSSES,))))
    assert handle.waiting_for() == "waiting: no worker with mode tensor"
    write_worker(redis, record(redis))
    assert handle.waiting_for() == ""
    pause_queue(redis, "default")
    assert handle.waiting_for() == "waiting: queue default is paused"
    resume_queue(redis, "default")
    forget_worker(redis, record(redis).id)
    claim(handle.id)
    assert handle.waiting_for() == ""


def test_what_attempts_have_kept_can_be_asked_for(client, claim):
    handle = client.submit({"prompt": "a red kite"})
    claim(handle.id).keep(KEPT, SAVED)
    assert handle.kept() == KEPT


def test_waiting_for_a_dead_job_raises_the_reason_of_each_attempt(client, claim, use_up):
    handle = client.submit({"prompt": "a red kite"})
    use_up(claim(handle.id))
    assert handle.status() == "dead"
    with pytest.raises(JobFailed, match=r"attempt 1: first; attempt 2: second; attempt 3: third.*h3render dead"):
        handle.wait(timeout_s=5)


def test_a_dead_job_that_is_retried_is_followed_past_its_death(client, leases, claim, use_up):
    handle = client.submit({"prompt": "a red kite"})
    use_up(claim(handle.id))
    assert [event.kind for event in handle.events(timeout_s=5)][-1] == "dead"
    leases.retry_dead(handle.id)
    claim(handle.id).finish(FINISHED, RESULT)
    kinds = [event.kind for event in handle.events(timeout_s=5)]
    assert kinds[-4:] == ["dead", "retried", "started", "finished"]
    assert handle.wait(timeout_s=5) == FINISHED
