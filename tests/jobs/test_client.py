import json

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from jobs.client import Client
from jobs.errors import JobFailed, JobNotFound, RedisUnavailable, RequestInvalid
from jobs.events import EventLog, Failed, Finished, Queued, Started, StepDone
from jobs.queues import JOB_FUNCTION, QueueName

FINISHED = Finished(attempt=1, store_url="file:///s", result_key="r", video_key="v", report_key="p", playlist_key="l")


@pytest.fixture
def redis(redis_url):
    with Redis.from_url(redis_url) as redis:
        yield redis


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


def test_kinds_of_events_that_only_a_newer_version_knows_are_passed_over(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    redis.xadd(f"h3:events:{handle.id}", {"event": '{"kind": "teleported", "where": "moon"}'})
    EventLog(redis).append(handle.id, FINISHED)
    assert [event.kind for event in handle.events(timeout_s=5)] == ["queued", "finished"]
    assert [event.kind for event in handle.news()] == ["queued", "finished"]


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
