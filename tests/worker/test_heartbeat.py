"""The thread that keeps a worker's leases, on a real Redis."""

import threading

import pytest
from redis import Redis
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from tests.waiting import eventually
from worker.heartbeat import Heartbeat

BEAT_S = 0.05


@pytest.fixture
def said():
    with capture_logs() as lines:
        yield lambda: [line["event"] for line in lines]


def beating(url, *, beat=lambda redis: redis.incr("beats"), look=lambda: None, ask=lambda redis: None):
    return Heartbeat(url, BEAT_S, beat=beat, look=look, ask=ask)


def beats(redis):
    return int(redis.get("beats") or 0)


def test_it_beats_until_it_is_closed(redis_url):
    with Redis.from_url(redis_url) as redis:
        with beating(redis_url):
            eventually(lambda: beats(redis) >= 5)
            assert "heartbeat" in [thread.name for thread in threading.enumerate()]
        assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


def test_it_looks_more_often_than_it_beats(redis_url):
    looks, at_beats = [], []
    with beating(redis_url, beat=lambda _: at_beats.append(len(looks)), look=lambda: looks.append(1)):
        eventually(lambda: len(at_beats) >= 5)
    assert len(looks) >= 2 * len(at_beats)


@pytest.mark.parametrize("broken", ["beat", "look"])
def test_a_fault_that_nobody_expected_is_told_and_the_next_beat_comes(redis_url, said, broken):
    failures = iter([RuntimeError("no class for it"), OSError("can't start new thread"), ZeroDivisionError()])

    def fail_three_times(*_):
        if (failure := next(failures, None)) is not None:
            raise failure

    def beat(redis):
        if broken == "beat":
            fail_three_times()
        redis.incr("beats")

    look = fail_three_times if broken == "look" else lambda: None
    with Redis.from_url(redis_url) as redis, beating(redis_url, beat=beat, look=look):
        eventually(lambda: beats(redis) >= 3)
    assert said().count("heartbeat broken") == 3


def test_it_goes_on_when_redis_is_back(redis_server, said):
    with Redis.from_url(redis_server.url) as redis, beating(redis_server.url):
        eventually(lambda: beats(redis) >= 2)
        redis_server.stop()
        eventually(lambda: said().count("unhealthy: Redis does not answer") >= 3)
        redis_server.start()
        before = eventually(lambda: beats(redis))
        eventually(lambda: beats(redis) > before)


def test_it_looks_at_the_fleet_while_redis_is_gone(redis_server):
    looks, failed = [], threading.Event()

    def beat(redis):
        try:
            redis.ping()
        except RedisError:
            failed.set()
            raise

    with beating(redis_server.url, beat=beat, look=lambda: looks.append(1)):
        redis_server.stop()
        assert failed.wait(10)
        seen = len(looks)
        eventually(lambda: len(looks) > seen + 5)


def test_it_asks_as_often_as_it_looks_and_not_while_redis_is_gone(redis_server):
    asked, looks = [], []

    def ask(redis):
        asked.append(redis.ping())

    with beating(redis_server.url, look=lambda: looks.append(1), ask=ask):
        eventually(lambda: len(asked) >= 5)
        assert len(asked) >= len(looks) / 2
        redis_server.stop()
        eventually(lambda: len(looks) > len(asked) + 10)
        redis_server.start()
        before = len(asked)
        eventually(lambda: len(asked) > before)


def test_a_broken_client_of_the_worker_does_not_stop_it(redis_url):
    """Its client is its own: the worker's may be in the middle of anything."""
    with (
        Redis.from_url(redis_url, max_connections=1) as workers,
        workers.pubsub() as listener,
        Redis.from_url(redis_url) as redis,
    ):
        listener.subscribe("channel")  # holds the only connection
        with beating(redis_url):
            eventually(lambda: beats(redis) >= 3)
