"""Which renders are timed, and what happens if that cannot be written down."""

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from structlog.testing import capture_logs

from jobs.offers import Offer
from jobs.render_times import CLASSES_KEY, RenderClass, read_render_times
from jobs.request import ResolvedRequest
from tests.jobs.leasing import FINISHED
from tests.worker.attempts import REQUEST, begin_second, checkpoint, render
from tests.worker.outages import FAILURES
from worker.render_time import note_time, was_whole

MEASURED = RenderClass.of(ResolvedRequest(**REQUEST), Offer())


def test_a_first_attempt_that_makes_its_result_is_whole(job, store):
    finished = render(job.begin(store), job)
    assert was_whole(job.lease, finished)


def test_an_attempt_that_could_go_on_from_an_earlier_one_is_not_whole(job, store):
    finished = render(begin_second(store, job, checkpoint(job, 1)), job)
    assert finished.attempt == job.lease.attempt == 2
    assert not was_whole(job.lease, finished)


def test_an_attempt_after_one_that_kept_nothing_is_whole(job, store):
    finished = render(begin_second(store, job), job)
    assert was_whole(job.lease, finished)


def test_an_attempt_that_finds_an_earlier_ones_result_is_not_whole(job, store):
    job.begin(store)
    job.lose()
    job.begin(store)
    assert not was_whole(job.lease, FINISHED)  # of attempt 1


@pytest.mark.parametrize("failure", ["it is killed", "its memory is full"])
def test_a_redis_that_takes_nothing_is_only_logged(redis_server, failure):
    fail, mend = FAILURES[failure]
    with Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0)) as redis:
        fail(redis_server, redis)
        with capture_logs() as lines:
            note_time(redis, MEASURED, 5.0)
        mend(redis_server, redis)
        assert [line["event"] for line in lines] == ["the time of the render is not recorded"]
        assert read_render_times(redis).seconds == {}


def test_a_key_that_somebody_else_has_written_is_only_logged(redis):
    redis.set(CLASSES_KEY, "somebody's")
    with capture_logs() as lines:
        note_time(redis, MEASURED, 5.0)
    assert len(lines) == 1
