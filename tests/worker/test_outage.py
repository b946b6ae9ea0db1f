"""Every way in which a real Redis fails for a while, under a worker that must not lose a render by it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from structlog.testing import capture_logs

from jobs.client import Client
from jobs.errors import LeaseLost
from jobs.events import StepDone
from jobs.lease import Leases
from tests.jobs.leasing import without_ids
from tests.waiting import eventually
from tests.worker.outages import FAILURES
from worker.outage import insist, is_outage

DEADLINE_S = 30.0
NEWS = StepDone(step=1, steps=2, sigma=1.0, seconds=0.1)


@pytest.fixture
def redis(redis_server):
    once = Retry(NoBackoff(), 0)  # the library's own retries would hide ours
    with Redis(unix_socket_path=str(redis_server.socket), retry=once, socket_timeout=0.5) as redis:
        yield redis


@pytest.fixture
def job(redis):
    return Client(redis).submit({"prompt": "a red kite"})


@pytest.fixture
def lease(redis, job):
    leases = Leases(redis)
    [[waiting]] = leases.peek(["default"], 0, 1)
    return leases.claim(waiting, "w")


@pytest.mark.parametrize("failure", FAILURES)
def test_news_are_told_once_redis_is_back(redis_server, redis, job, lease, failure):
    fail, mend = FAILURES[failure]
    lease.beat()
    fail(redis_server, redis)
    with ThreadPoolExecutor(1) as pool, capture_logs() as lines:
        telling = pool.submit(insist, lambda: lease.tell(NEWS))
        try:
            eventually(lambda: telling.done() or [line for line in lines if "Redis does not" in line["event"]])
            assert not telling.done()
        finally:
            mend(redis_server, redis)
        telling.result(DEADLINE_S)
    assert without_ids(job.news())[-1] == NEWS
    lease.beat()


def test_what_no_waiting_mends_is_raised_at_once(redis, lease):
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        insist(lambda: redis.lpush("h3:leases", "x"))
    lease.hand_back("drained", "done with it")
    with pytest.raises(LeaseLost):
        insist(lambda: lease.tell(NEWS))


@pytest.mark.parametrize("text", ["WRONGTYPE", "NOSCRIPT", "ERR unknown command", "wrong number: MISCONF"])
def test_an_answer_that_is_final_is_no_outage(text):
    assert not is_outage(ResponseError(text))
    assert not is_outage(RedisError(text))
