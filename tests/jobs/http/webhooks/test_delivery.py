"""Notices on their way from the stream to a receiver, with services that die, share and wait."""

import asyncio
import json
import logging
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import pytest
from openai import OpenAI
from redis import Redis

from jobs.connection import RIGHTS
from jobs.errors import StoreUnavailable
from jobs.http.webhooks.due import MOST_OF_A_HOST
from tests.jobs.http.webhooks.receiver import Answer, running_receiver
from tests.jobs.http.webhooks.service import SECRET, describe, running_service, serve, settings_for_loopback
from tests.jobs.leasing import FINISHED, RESULT
from tests.servers import free_ports
from tests.waiting import eventually

SERVICE = "tests.jobs.http.webhooks.service"
AT_ONCE = (0.01,) * 6
DELIVERIES = "h3:webhooks:deliveries"


def due_key(host="127.0.0.1"):
    return f"h3:webhooks:due:{host}"


def await_told(told, event):
    return eventually(lambda: next((line for line in told if line["event"] == event), None))


def await_calls(receiver, count):
    eventually(lambda: len(receiver.calls) >= count)
    return receiver.calls


def left(redis):
    """Every key of webhooks."""
    return [key for key in redis.scan_iter("h3:webhooks*") if key != b"h3:webhooks" or redis.xlen(key)]


def await_none_left(redis):
    eventually(lambda: not left(redis))


def wait_of(redis, entry):
    """Seconds until its next try."""
    seconds, microseconds = redis.time()
    return redis.zscore(due_key(), entry) / 1000 - seconds - microseconds / 1e6


# --- a delivery


def test_the_end_of_a_job_is_delivered_signed_and_forgotten(redis, claim, submit, receiver, serving, told):
    job_id = submit(webhook=f"{receiver.url}/hook?token=hidden")
    with serving():
        claim(job_id).finish(FINISHED, RESULT)
        [call] = await_calls(receiver, 1)
        await_none_left(redis)
    with OpenAI(api_key="none", webhook_secret=SECRET) as client:
        event = client.webhooks.unwrap(call.body, call.headers)
    assert (event.type, event.data.id) == ("video.completed", job_id)
    assert abs(event.created_at - redis.time()[0]) < 30
    assert (call.path, call.headers["content-type"]) == ("/hook?token=hidden", "application/json")
    line = await_told(told, "webhook delivered")
    assert (line["job_id"], line["status"], line["tries"], line["host"]) == (job_id, 200, 1, "127.0.0.1")


def test_no_secret_of_a_receiver_comes_into_the_log(note, receiver, serving, told, caplog):
    caplog.set_level(logging.DEBUG)
    receiver.answers = [Answer(500), Answer(410)]
    with serving(backoff_s=AT_ONCE):
        note(f"{receiver.url}/s3cret?token=s3cret")
        await_told(told, "webhook given up")
    assert "s3cret" not in f"{told}{caplog.text}"


def test_of_a_job_that_is_gone_the_id_is_told(note, receiver, serving):
    async def find_nothing(job_id):
        return None

    note(receiver.url, "7")
    with serving(find_nothing):
        [call] = await_calls(receiver, 1)
    body = json.loads(call.body)
    assert (body["type"], body["data"]) == ("video.completed", {"id": "7"})


# --- tries


def test_a_notice_is_tried_until_it_is_taken_with_the_same_id(redis, note, receiver, serving):
    receiver.answers = [Answer(500), Answer(302), Answer(404), Answer(204)]
    note(receiver.url)
    with serving(backoff_s=AT_ONCE):
        await_none_left(redis)
    assert len(receiver.calls) == 4
    assert len({call.headers["webhook-id"] for call in receiver.calls}) == 1


def test_it_is_given_up_after_the_last_try(redis, note, receiver, serving, told):
    receiver.answers = [Answer(500)]
    note(receiver.url)
    with serving(backoff_s=AT_ONCE[:2]):
        assert await_told(told, "webhook given up")["reason"] == "status 500, 3 tries"
        await_none_left(redis)
    assert len(receiver.calls) == 3


def test_a_receiver_that_is_not_there_yet_gets_it_later(redis, note, serving, told):
    [port] = free_ports(1)
    note(f"http://127.0.0.1:{port}/")
    with serving(backoff_s=(0.05,) * 100):
        await_told(told, "webhook failed")
        with running_receiver(port=port) as receiver:
            await_calls(receiver, 1)
            await_none_left(redis)


def test_a_receiver_that_is_gone_is_left_at_once(redis, note, receiver, serving, told):
    receiver.answers = [Answer(410)]
    note(receiver.url)
    with serving(backoff_s=AT_ONCE):
        await_told(told, "webhook given up")
        await_none_left(redis)
    assert len(receiver.calls) == 1


@pytest.mark.parametrize(("headers", "wait_s"), [({}, 5), ({"retry-after": "120"}, 120)])
def test_a_try_that_failed_is_due_again_after_a_while(redis, note, receiver, serving, told, headers, wait_s):
    receiver.answers = [Answer(503, headers)]
    entry = note(receiver.url)
    with serving():
        await_told(told, "webhook failed")
        assert wait_s - 4 < wait_of(redis, entry) <= wait_s
    assert json.loads(redis.hget(DELIVERIES, entry))["tries"] == 1


def test_what_cannot_be_described_now_is_due_again_and_no_try_is_counted(redis, note, receiver, serving, told):
    async def fail(job_id):
        raise StoreUnavailable("the store does not answer")

    entry = note(receiver.url)
    with serving(fail):
        assert "the store does not answer" in await_told(told, "webhook failed")["reason"]
    assert json.loads(redis.hget(DELIVERIES, entry))["tries"] == 0
    assert 5 < wait_of(redis, entry) <= 15
    assert receiver.calls == []


def test_a_fault_of_ours_leaves_the_notice_due_and_the_service_at_work(redis, note, receiver, serving, told):
    async def fail_for_one(job_id):
        return {"id": 1 / (job_id != "bad")}

    bad = note(receiver.url, "bad")
    with serving(fail_for_one):
        assert await_told(told, "webhook broke off")["job_id"] == "bad"
        note(receiver.url, "good")
        await_calls(receiver, 1)
    assert 30 < wait_of(redis, bad) <= 60


# --- several receivers, several services


def test_a_receiver_that_is_slow_does_not_hold_up_another(note, receiver, serving):
    receiver.is_open.clear()
    for number in range(300):
        note(f"{receiver.url}/{number}")
    with running_receiver("127.0.0.2") as other, serving(grace_s=0.0):
        await_calls(receiver, MOST_OF_A_HOST)
        note(other.url)
        await_calls(other, 1)
        assert len(receiver.calls) == MOST_OF_A_HOST


def test_two_services_share_what_is_due_and_deliver_nothing_twice(redis, note, receiver, serving):
    receiver.is_open.clear()
    with serving(), serving():
        for number in range(60):
            note(f"{receiver.url}/{number}")
        await_calls(receiver, 2 * MOST_OF_A_HOST)  # as many as both may be at
        receiver.is_open.set()
        await_none_left(redis)
    assert Counter(receiver.paths) == Counter(f"/{number}" for number in range(60))


def test_what_a_killed_service_was_at_is_delivered_after_its_lease(redis_url, redis, note, receiver, serving):
    receiver.is_open.clear()
    entry = note(receiver.url)
    killed = subprocess.Popen([sys.executable, "-m", SERVICE, redis_url, "1.0"])
    try:
        await_calls(receiver, 1)
    finally:
        killed.kill()
        killed.wait()
    assert wait_of(redis, entry) <= 1.0
    receiver.is_open.set()
    with serving():
        first, second = await_calls(receiver, 2)
        await_none_left(redis)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


def test_within_the_lease_nobody_else_delivers_it(redis, note, receiver, serving):
    receiver.is_open.clear()
    entry = note(f"{receiver.url}/held")
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(serving(grace_s=0.0))
        await_calls(receiver, 1)
        with running_receiver("127.0.0.2") as other:
            note(other.url)
            await_calls(other, 1)
        assert receiver.paths == ["/held"]
    assert 30 < wait_of(redis, entry) <= 60


# --- the end of a service


def test_what_is_on_its_way_is_ended_in_good_order(redis, note, receiver, serving):
    receiver.is_open.clear()
    note(receiver.url)
    with serving() as service:
        await_calls(receiver, 1)
        service.ask_to_stop()
        receiver.is_open.set()
        service.join()
        assert left(redis) == []


def test_what_takes_too_long_stays_due(redis, note, receiver, serving):
    receiver.is_open.clear()
    entry = note(receiver.url)
    with serving(grace_s=0.05) as service:
        await_calls(receiver, 1)
        service.ask_to_stop()
        service.join()
        assert redis.zscore(due_key(), entry)


def test_a_service_ends_at_whatever_moment_it_is_canceled(redis_url):
    """redis-py can swallow it, in about one of ten."""

    async def begin_and_cancel():
        for moment in range(60):
            serving = asyncio.create_task(serve(redis_url, settings, describe))
            await asyncio.sleep(moment / 12_000)
            serving.cancel()
            _, running = await asyncio.wait([serving], timeout=5)
            assert not running
            assert asyncio.all_tasks() == {asyncio.current_task()}

    settings = settings_for_loopback()
    asyncio.run(begin_and_cancel())


# --- bounds, and what others have written


def test_a_notice_that_is_a_day_old_is_dropped(redis, serving, receiver, told):
    redis.xadd("h3:webhooks", {"job": "old", "url": receiver.url}, id="1000-0")
    redis.hset(
        DELIVERIES, "2000-0", json.dumps({"job": "older", "url": "x", "host": "h", "outcome": "failed", "tries": 0})
    )
    redis.zadd(due_key("h"), {"2000-0": 1})
    redis.zadd("h3:webhooks:hosts", {"h": 1})
    with serving():
        assert set(await_told(told, "webhooks dropped")["job_ids"]) == {"old", "older"}
        await_none_left(redis)
    assert receiver.calls == []


def test_a_host_with_too_many_loses_one_that_is_tried_last(redis, note, serving, receiver, told):
    later = (redis.time()[0] + 3600) * 1000
    redis.zadd(due_key(), {f"{later}-{number}": later + number for number in range(20_000)})
    redis.hset(
        DELIVERIES,
        f"{later}-19999",
        json.dumps({"job": "last", "url": "x", "host": "127.0.0.1", "outcome": "failed", "tries": 5}),
    )
    note(receiver.url)
    with serving():
        await_calls(receiver, 1)
        assert await_told(told, "webhooks dropped")["job_ids"] == ("last",)


def test_rubbish_in_its_keys_stops_nothing(redis, note, receiver, serving, told):
    redis.xadd("h3:webhooks", {"what": b"\xff"})
    note(b"\xff\x00", b"\xfe")
    redis.zadd("h3:webhooks:hosts", {b"\xff": 1, "h": 1})
    redis.zadd(due_key("h"), {"": 1, "x": 1, "y": 1})
    redis.hset(DELIVERIES, mapping={"x": "7", "y": '{"job": 1}'})
    with serving():
        note(receiver.url)
        await_calls(receiver, 1)
        assert await_told(told, "webhook given up")["reason"] == "its URL cannot be called"
        await_none_left(redis)


# --- Redis


def test_a_redis_that_is_away_is_waited_for_and_nothing_is_delivered_twice(redis_server, receiver, told):
    receiver.is_open.clear()
    with Redis.from_url(redis_server.url) as redis, running_service(redis_server.url, settings_for_loopback()):
        redis.xadd("h3:webhooks", {"job": "first", "url": f"{receiver.url}/first"})
        await_calls(receiver, 1)
        redis_server.kill()
        receiver.is_open.set()
        await_told(told, "webhooks wait for redis")
        redis_server.start()
        redis.xadd("h3:webhooks", {"job": "second", "url": f"{receiver.url}/second"})
        await_calls(receiver, 2)
        await_none_left(redis)
    assert receiver.paths == ["/first", "/second"]


def test_the_rights_that_others_have_are_enough(redis_server, receiver, told):
    with Redis.from_url(redis_server.url) as redis:
        redis.execute_command("ACL", "SETUSER", "farm", "reset", "on", ">secret", *RIGHTS.split())
        url = redis_server.url.replace("unix://", "unix://farm:secret@")
        receiver.answers = [Answer(500), Answer(200)]
        with running_service(url, settings_for_loopback(backoff_s=AT_ONCE)):
            redis.xadd("h3:webhooks", {"job": "job", "url": receiver.url})
            await_told(told, "webhook delivered")
            await_none_left(redis)
