import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from jobs.client import Client
from jobs.errors import (
    CancelRefused,
    EventsGone,
    JobFailed,
    JobNotFound,
    KeyConflict,
    RedisUnavailable,
    RequestInvalid,
    ResultMissing,
    SettingsInvalid,
    StoreUnavailable,
)
from jobs.events import Dead, Failed, Queued, Reading, Retried, Started, StepDone
from jobs.file_store import FileStore
from jobs.lease import Leases
from jobs.offers import Offer
from jobs.progress import describe
from jobs.queues import JOB_FUNCTION, QueueName
from jobs.request import GenerateRequest, Mode
from jobs.result import result_key
from jobs.submission import Submission, digest_of
from jobs.workers import forget_worker, pause_queue, resume_queue, write_worker
from tests.jobs.leasing import FINISHED, KEPT, RESULT, SAVED, claim_job, tell, without_ids
from tests.jobs.records import record

DEAD = Dead(attempt=3, losses=[])


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
    assert handle.status().state.is_queued


def test_the_reply_tells_what_sizes_snapped_to(client):
    request = client.submit({"prompt": "a red kite", "aspect": "1:1", "short_side": 100, "seconds": 1.2}).request()
    assert (request.width, request.height, request.frames) == (96, 96, 39)


def test_a_bad_request_queues_nothing(client, redis):
    with pytest.raises(RequestInvalid):
        client.submit({"prompt": "x", "frames": 40})
    assert redis.keys() == []


def test_events_replay_from_the_first_and_end_with_the_last(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    told = [Started(attempt=1, worker="w"), StepDone(step=1, steps=2, sigma=1.0, seconds=0.1), FINISHED]
    for event in told:
        tell(redis, handle.id, event)
    events = list(handle.events(timeout_s=5))
    assert isinstance(events[0], Queued)
    assert without_ids(events)[1:] == told == without_ids(handle.news())[1:]
    assert without_ids([handle.wait(timeout_s=5)]) == [FINISHED]


def test_waiting_for_a_failed_job_raises_its_reason(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    tell(redis, handle.id, Failed(attempt=2, reason="the store is full"))
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
    ended = (EventsGone, "has finished, but") if status == "finished" else (JobFailed, "stop before its end")
    with pytest.raises(ended[0], match=ended[1]):
        handle.wait(timeout_s=20)


def test_following_ends_when_the_record_is_gone(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    redis.delete(f"rq:job:{handle.id}")
    assert [event.kind for event in handle.events(timeout_s=20)] == ["queued"]


def test_a_kind_of_event_that_only_a_newer_version_knows_is_named_and_passed_over(client, redis):
    handle = client.submit({"prompt": "a red kite"})
    redis.xadd(f"h3:events:{handle.id}", {"event": '{"kind": "teleported", "where": "moon"}'})
    tell(redis, handle.id, FINISHED)
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
    assert second.status().state.is_queued


def test_a_waiting_job_says_what_it_waits_for(client, redis, claim):
    handle = client.submit({"prompt": "a red kite", "mode": "tensor"})
    assert handle.status().waiting_for == "waiting: no worker is alive"
    write_worker(redis, record(redis, offer=Offer(modes=(Mode.ULYSSES,))))
    assert handle.status().waiting_for == "waiting: no worker with mode tensor"
    write_worker(redis, record(redis))
    assert handle.status().waiting_for == ""
    pause_queue(redis, "default")
    assert handle.status().waiting_for == "waiting: queue default is paused"
    resume_queue(redis, "default")
    forget_worker(redis, record(redis).id)
    claim(handle.id)
    assert handle.status().waiting_for == ""


def test_what_attempts_have_kept_can_be_asked_for(client, claim):
    handle = client.submit({"prompt": "a red kite"})
    claim(handle.id).keep(KEPT, SAVED)
    assert handle.kept() == KEPT


def test_waiting_for_a_dead_job_raises_the_reason_of_each_attempt(client, claim, use_up):
    handle = client.submit({"prompt": "a red kite"})
    use_up(claim(handle.id))
    assert handle.status().state == "dead"
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
    assert without_ids([handle.wait(timeout_s=5)]) == [FINISHED]


@pytest.mark.parametrize(
    "webhook",
    [
        "",
        "example.org",
        "ftp://example.org/x",
        "https://",
        "https://exa mple.org",
        "https://[::1",
        "http://" + "a" * 3000,
    ],
)
def test_a_webhook_that_nobody_could_call_is_refused_before_anything_is_queued(client, redis, webhook):
    with pytest.raises(RequestInvalid, match=r"is no URL that can be called: write https://host/path"):
        client.submit({"prompt": "a red kite"}, webhook=webhook)
    assert redis.keys() == []


def test_what_a_later_version_says_besides_of_an_end_leaves_it_an_end(client, redis, claim):
    handle = client.submit({"prompt": "a red kite"})
    claim(handle.id)
    later = json.dumps(FINISHED.model_dump() | {"colour": "red"})
    redis.xadd(f"h3:events:{handle.id}", {"event": later})
    assert without_ids([handle.wait(timeout_s=5)]) == [FINISHED]


def test_no_time_is_time_enough_to_read_what_was_told(client, claim):
    handle = client.submit({"prompt": "a red kite"})
    with pytest.raises(TimeoutError):
        handle.wait(timeout_s=0)
    claim(handle.id).finish(FINISHED, RESULT)
    assert handle.wait(timeout_s=0).kind == "finished"


def test_a_last_event_that_comes_between_two_looks_is_told(client, redis, claim, monkeypatch):
    """The job's end is seen before its last event is: what `has_ended` is asked for, and what it is not the end of."""
    handle = client.submit({"prompt": "a red kite"})
    lease = claim(handle.id)
    told = [event.kind for event in handle.events(timeout_s=20, while_waiting=lambda: lease.finish(FINISHED, RESULT))]
    assert told == ["queued", "started", "finished"]


def test_a_dead_job_that_is_retried_while_somebody_reads_its_death_is_gone_on_with():
    reading = Reading("j", None, None)

    def take(*events):
        entries = [
            (f"{n}-0".encode(), {b"event": event.model_dump_json().encode()}) for n, event in enumerate(events, 1)
        ]
        return reading.take([(b"h3:events:j", entries)])

    take(DEAD, Retried())
    assert not reading.is_over
    take(Started(attempt=4, worker="w"), FINISHED)
    assert reading.is_over


def test_the_digest_of_a_request_is_the_same_in_every_version():
    """Whoever repeats a submit over an upgrade is given the same job."""
    submission = Submission(GenerateRequest.parse({"prompt": "a red kite", "seconds": 1.0, "seed": 3}), "default")
    assert digest_of(submission) == sha256(b'{"prompt":"a red kite","seconds":1.0,"seed":3}default').hexdigest()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": ""}, "queue '' is no name"),
        ({"queue": "default:intermediate"}, "is no name of one"),
        ({"idempotency_key": ""}, "idempotency_key is empty"),
    ],
)
def test_what_would_meet_other_keys_is_refused(client, redis, options, message):
    with pytest.raises(RequestInvalid, match=message):
        client.submit({"prompt": "a red kite"}, **options)
    assert redis.keys() == []


def test_half_characters_are_no_tracebacks(client):
    handle = client.submit({"prompt": "a red kite"}, idempotency_key="\ud800")
    assert client.submit({"prompt": "a red kite"}, idempotency_key="\ud800").id == handle.id
    with pytest.raises(JobNotFound, match=r"no job '\\ud800'"):
        client.job("\ud800")


def test_a_key_is_kept_as_long_as_it_is_used(client, redis):
    client.submit({"prompt": "a red kite"}, idempotency_key="order 7")
    [key] = redis.keys("h3:key:*")
    redis.expire(key, 100)
    client.submit({"prompt": "a red kite"}, idempotency_key="order 7")
    assert redis.ttl(key) > 1000


def test_a_client_that_makes_text_of_answers_is_refused_before_it_queues_anything(redis_url):
    with Redis.from_url(redis_url, decode_responses=True) as redis, pytest.raises(SettingsInvalid, match="decode_resp"):
        Client(redis)


def test_newer_ways_to_speak_to_redis_do(redis_url, claim):
    with Redis.from_url(redis_url, protocol=3) as redis:
        job = Client(redis).submit({"prompt": "a red kite"})
        claim(job.id).finish(FINISHED, RESULT)
        assert job.wait(timeout_s=5).kind == "finished"
        assert (job.status().state, len(job.news())) == ("finished", 3)


def test_a_follower_goes_on_after_redis_has_started_again(redis_server):
    with Redis.from_url(redis_server.url) as redis, Client(redis) as client:
        job = client.submit({"prompt": "a red kite"})
        [first] = job.news()
        redis.set("x", 1)
        redis.bgrewriteaof()
        following = job.events(since=first.id)
        redis_server.stop()
        with pytest.raises(RedisUnavailable):
            next(following)
        redis_server.start()
        leases = Leases(redis)
        claim_job(leases, job.id).finish(FINISHED, RESULT)
        assert [event.kind for event in job.events(since=first.id, timeout_s=20)] == ["started", "finished"]


@pytest.mark.parametrize(
    "record",
    [
        {"h3_attempts": "9" * 5000},
        {"h3_attempts": "nan"},
        {"h3_outcome": b"\xff"},
        {"h3_lease": b"\xff"},
        {"origin": b"\xff\xfe"},
        {"worker_name": b"\xff"},
    ],
)
def test_what_others_have_written_into_a_record_is_no_traceback(client, redis, record):
    job = client.submit({"prompt": "a red kite"})
    redis.hset(f"rq:job:{job.id}", mapping=record)
    assert job.status().id == job.id
    assert client.job(job.id).news()
    with suppress(CancelRefused):
        job.cancel()


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "step_done", "step": int("9" * 400), "steps": 2, "sigma": 1.0, "seconds": 1.0},
        {"kind": "step_done", "step": 1, "steps": int("9" * 400), "sigma": 1.0, "seconds": 1.0},
        {"kind": "step_done", "step": 1, "steps": 2, "sigma": 1.0, "seconds": float("inf")},
        {"kind": "stream_opened", "segments": -5, "playlist_key": "p"},
    ],
)
def test_numbers_that_no_worker_tells_are_news_that_cannot_be_read(client, redis, claim, event):
    job = client.submit({"prompt": "a red kite"})
    claim(job.id)
    redis.xadd(f"h3:events:{job.id}", {"event": json.dumps(event)})
    redis.xadd(f"h3:events:{job.id}", {"event": json.dumps(event)}, id="18446744073709551614-1")
    assert [event.kind for event in job.news()] == ["queued", "started", "unknown", "unknown"]
    assert (job.status().state, job.status().eta_s, job.news()[-1].at) == ("running", None, None)


@pytest.mark.parametrize("key", ["h3:paused", "h3:workers", "rq:queue:default"])
def test_a_key_of_another_type_hides_no_job(client, redis, key):
    job = client.submit({"prompt": "a red kite"})
    redis.delete(key)
    redis.set(key, "x")
    assert job.status().state.is_queued


def test_a_job_that_somebody_has_deleted_from_its_queue_says_so(client, redis):
    job = client.submit({"prompt": "a red kite"})
    redis.delete("rq:queue:default")
    assert "deleted it from its queue: `h3render cancel` ends it" in job.status().describe()
    assert job.cancel()
    assert job.status().state == "canceled"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"version": 9}', b"\xff", None])
def test_a_result_that_cannot_be_read_is_named(client, claim, tmp_path, body):
    store = FileStore(tmp_path)
    job = client.submit({"prompt": "a red kite"})
    if body is not None:
        store.put_once(result_key(job.id), body, content_type="application/json")
    claim(job.id).finish(FINISHED.model_copy(update={"store_url": tmp_path.as_uri()}), RESULT)
    kind, words = (
        (ResultMissing, "does not exist") if body is None else (StoreUnavailable, "no result that this version")
    )
    with pytest.raises(kind, match=words):
        job.result()
