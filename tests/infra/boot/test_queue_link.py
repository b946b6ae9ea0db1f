"""A pod's side of a real Redis, also while that is away."""

import pytest

from infra.boot.queue_link import QueueLink
from infra.boot.settings import BootSettings
from infra.busy import Work
from infra.pod_report import CONTACT_KEY, BootState, note_contact, read_reports
from jobs.workers import WorkerState, server_time, write_worker
from tests.jobs.records import LASTING_BEAT_S, record

NAME = "h3render-f1-pod-0001"


@pytest.fixture
def make_link():
    def make(url):
        return QueueLink(BootSettings(name=NAME, fleet="f1", pod_id="p1", data_center="US-XX-1", redis_url=url))

    return make


def test_a_pod_hears_of_its_own_worker_and_of_who_looks_after_its_fleet(make_link, redis, redis_url):
    link = make_link(redis_url)
    assert (link.listen().work, link.listen().contact_at) == (Work.ABSENT, None)
    write_worker(redis, record(redis, "another", state=WorkerState.BUSY, beat_s=LASTING_BEAT_S))
    note_contact(redis, "f1")
    heard = link.listen()
    assert heard.work is Work.ABSENT
    assert 0 <= heard.now - heard.contact_at < 10
    write_worker(redis, record(redis, NAME, state=WorkerState.BUSY, beat_s=LASTING_BEAT_S))
    assert link.listen().work is Work.BUSY


def test_what_a_pod_says_is_there_by_the_servers_clock(make_link, redis, redis_url):
    before = server_time(redis)
    make_link(redis_url).tell(BootState.SERVING, "", 8, wants_end=False)
    told = read_reports(redis)[NAME]
    assert (told.pod_id, told.state, told.gpus, told.data_center) == ("p1", BootState.SERVING, 8, "US-XX-1")
    assert before <= told.at <= server_time(redis)


def test_a_redis_that_is_away_or_none_or_wrong_is_heard_nothing_of(make_link, redis_server):
    link = make_link(redis_server.url)
    assert link.listen() is not None
    redis_server.kill()
    for one in (link, make_link(None), make_link("no-url")):
        assert one.listen() is None
        one.tell(BootState.UNFIT, "no GPU", 0, wants_end=True)
    redis_server.start()
    assert link.listen() is not None


def test_a_key_that_somebody_else_has_written_ends_nothing(make_link, redis, redis_url):
    redis.set(CONTACT_KEY.format(fleet="f1"), "yesterday")
    assert make_link(redis_url).listen() is None
