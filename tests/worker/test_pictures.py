"""The pictures of a request, from a real store to where the runner looks for them."""

from collections import Counter

import pytest
from redis import Redis

from jobs.errors import StoreRefused, StoreUnavailable
from jobs.request import GenerateRequest
from tests.worker.attempts import REQUEST, Job, in_thread
from worker import items
from worker.attempt import Attempt
from worker.errors import Canceled, RequestRefused, UploadFailed
from worker.stall import StallWatch

KITE, BOAT = "inputs/kite.png", "inputs/boat.png"
DEADLINE_S = 30.0


@pytest.fixture
def begin(redis_url, store, tmp_path):
    """Begin an attempt at a job with these frames; its outputs."""
    store.put(KITE, b"a kite", content_type="image/png")
    store.put(BOAT, b"a boat", content_type="image/png")
    jobs = []
    with Redis.from_url(redis_url) as redis:

        def begin(limits, **frames):
            jobs.append(Job(redis, tmp_path, **frames))
            return jobs[-1].begin(store, **limits)

        yield begin
        for job in jobs:
            job.close()


@pytest.fixture
def work(tmp_path):
    """The folder of an attempt."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fail(store, times, error):
    """Fail the first fetches of each picture. Gives how often each was tried."""
    tried = Counter()

    def before(method, name):
        if method == "fetch":
            tried[name] += 1
            if tried[name] <= times:
                raise error

    store.before = before
    return tried


@pytest.mark.parametrize(
    ("frames", "files"),
    [
        ({}, {}),
        ({"first_frame": KITE}, {items.FIRST_FRAME: b"a kite"}),
        ({"last_frame": BOAT}, {items.LAST_FRAME: b"a boat"}),
        ({"first_frame": KITE, "last_frame": BOAT}, {items.FIRST_FRAME: b"a kite", items.LAST_FRAME: b"a boat"}),
        ({"first_frame": KITE, "last_frame": KITE}, {items.FIRST_FRAME: b"a kite", items.LAST_FRAME: b"a kite"}),
    ],
)
def test_the_pictures_that_a_request_names_lie_where_the_runner_looks(begin, work, frames, files):
    begin({}, **frames).fetch_pictures(work)
    assert contents(work) == files


def test_a_picture_that_is_not_there_is_refused_by_its_key_and_not_asked_for_again(begin, store, work):
    store.delete(BOAT)
    tried = fail(store, 0, None)
    with pytest.raises(RequestRefused, match=f"{BOAT} does not exist: put the picture there") as caught:
        begin({}, first_frame=KITE, last_frame=BOAT).fetch_pictures(work)
    assert not caught.value.job_may_retry
    assert caught.value.fleet_is_healthy
    assert tried == {"kite.png": 1}


def test_a_store_that_fails_now_and_then_costs_nothing(begin, store, work):
    tried = fail(store, 2, StoreUnavailable("try again"))
    begin({}, first_frame=KITE).fetch_pictures(work)
    assert contents(work) == {items.FIRST_FRAME: b"a kite"}
    assert tried == {"kite.png": 3}


@pytest.mark.parametrize("error", [StoreUnavailable("down"), StoreRefused("no rights")], ids=["down", "refuses"])
def test_a_store_that_stays_away_is_no_fault_of_the_request(begin, store, work, error):
    fail(store, 99, error)
    with pytest.raises(UploadFailed, match=str(error)) as caught:
        begin({"upload_s": 0.3}, first_frame=KITE).fetch_pictures(work)
    assert caught.value.cause == "store"
    assert contents(work) == {}


def test_nobody_waits_for_the_pictures_of_a_job_that_is_canceled(begin, store):
    outputs = begin({}, first_frame=KITE)
    no_controller = None  # it would be asked only for what follows
    attempt = Attempt(no_controller, GenerateRequest.parse(REQUEST).resolve(), StallWatch(), None)

    def fail_and_cancel(method, name):
        if method == "fetch":
            attempt.abort(Canceled("nobody wants it"))
            raise StoreUnavailable("down")

    store.before = fail_and_cancel
    with pytest.raises(Canceled):
        in_thread(attempt.run, outputs).result(DEADLINE_S)
