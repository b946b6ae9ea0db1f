"""Which pictures `h3render gc` removes, on real stores and a real Redis."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rq import Queue
from typer.testing import CliRunner

import h3render
from jobs.client import Client
from jobs.picture_retention import LEAST_AGE, find_pictures
from jobs.pictures import REWRITTEN_AFTER, put_picture
from jobs.queues import open_queue
from jobs.retention import Ages, JobCollector, RetentionScript, job_of
from jobs.store import open_store
from tests.jobs.leasing import FAILED, FINISHED, REQUEST, RESULT

KITE, BOAT = "inputs/kite.png", "inputs/boat.png"
AGE = Ages().results


@pytest.fixture(params=["file_store_url", "s3_store_url"])
def store(request):
    store = open_store(request.getfixturevalue(request.param))
    for key in (KITE, BOAT):
        store.put(key, b"x", content_type="image/png")
    return store


@pytest.fixture
def file_store(file_store_url):
    return open_store(file_store_url)


@pytest.fixture
def submit_with(redis):
    return lambda **frames: Client(redis).submit(REQUEST | frames).id


@pytest.fixture
def look(redis):
    """What is found in a store so many days from now."""
    return lambda store, days: list(find_pictures(redis, store, AGE, datetime.now(UTC) + timedelta(days=days)))


def names(findings):
    return [deletion.name for finding in findings for deletion in finding.deletions]


def test_a_picture_goes_when_it_is_old(store, look):
    assert look(store, 29.9) == []
    findings = look(store, 30.1)
    assert sorted(names(findings)) == sorted([KITE, BOAT])
    assert all(finding.remove() for finding in findings)
    assert list(store.list()) == []


def test_a_picture_stays_while_a_job_in_redis_names_it(store, look, redis, submit_with, claim):
    queued, claimed = submit_with(first_frame=KITE), submit_with(last_frame=BOAT)
    assert look(store, 1000) == []
    claim(queued).finish(FINISHED, RESULT)
    claim(claimed).fail(FAILED, "refused")  # and may be retried
    assert look(store, 1000) == []
    redis.delete(f"rq:job:{queued}")
    assert names(look(store, 1000)) == [KITE]


def test_a_job_of_a_later_version_keeps_its_pictures_too(store, look, redis):
    fields = {"version": 2, "middle_frame": KITE, "tags": [BOAT], "cover": BOAT}
    open_queue("default", redis).enqueue_call("worker.rq_worker.render", kwargs={"request": fields})
    assert look(store, 1000) == []


def test_what_is_no_job_of_ours_keeps_nothing_and_is_no_hindrance(store, look, redis):
    Queue("default", connection=redis).enqueue_call("os.system", args=[KITE])  # pickled
    open_queue("default", redis).enqueue_call("os.system", args=[KITE])
    open_queue("default", redis).enqueue_call("worker.rq_worker.render", kwargs={"request": KITE})
    redis.set("rq:job:no-hash", KITE)
    redis.hset("rq:job:no-data", "status", "queued")
    assert len(look(store, 1000)) == 2


def test_a_picture_that_is_put_anew_after_the_look_stays(file_store, look):
    file_store.put(KITE, b"x", content_type="image/png")
    os.utime(file_store.url(KITE), (0, 0))
    [finding] = look(file_store, 0)
    file_store.put(KITE, b"x", content_type="image/png")
    assert not finding.remove()
    assert file_store.get(KITE) == b"x"
    file_store.delete(KITE)
    assert not finding.remove()


def test_a_picture_that_a_submit_counts_on_stays_however_short_results_are_kept(
    redis, file_store, tmp_path, submit_with, monkeypatch
):
    """The submit finds it, uploads nothing, and has not queued its job when `h3render gc` looks."""
    (tmp_path / "kite.png").write_bytes(b"\x89PNG\r\n\x1a\n and what else makes a picture")
    key = put_picture(file_store, tmp_path / "kite.png")
    written = datetime.now(UTC).timestamp() - (REWRITTEN_AFTER - timedelta(minutes=1)).total_seconds()
    os.utime(file_store.url(key), (written, written))
    monkeypatch.delattr(type(file_store), "put")
    assert put_picture(file_store, tmp_path / "kite.png") == key

    def look(now):
        return names(find_pictures(redis, file_store, timedelta(0), now))

    assert key not in look(datetime.now(UTC) + timedelta(hours=23))
    submit_with(first_frame=key)
    assert key not in look(datetime.now(UTC) + LEAST_AGE)


def test_none_goes_before_two_days_even_if_results_are_not_kept(redis, store):
    for days, gone in ((1.9, []), (2.1, [BOAT, KITE])):
        assert (
            sorted(names(find_pictures(redis, store, timedelta(0), datetime.now(UTC) + timedelta(days=days)))) == gone
        )


STRANGE = ["inputs/folder/kite.png", "inputs/kite and boat.png", "inputs-2/kite.png"]


def test_what_no_request_can_name_is_not_ours(redis, file_store, look):
    """Nor is it a job's, whatever it is called."""
    of_no_job = ["inputs/result.json", "inputs/attempts/1/video.mp4"]
    for key in (KITE, *STRANGE, *of_no_job):
        file_store.put(key, b"x", content_type="image/png")
    assert sorted(names(look(file_store, 1000))) == [KITE, "inputs/result.json"]
    assert [job_of(key) for key in of_no_job] == ["", ""]
    collector = JobCollector(file_store, RetentionScript(redis), Ages(), datetime.now(UTC) + timedelta(days=1000))
    [finding] = collector.look()
    assert finding.left_alone == "4 of the store's objects, which belong to no job"


def test_gc_tells_and_deletes_them(redis_url, file_store_url, file_store, submit_with, tmp_path):
    submit_with(first_frame=KITE)
    for key in (KITE, BOAT):
        file_store.put(key, b"12345", content_type="image/png")
        os.utime(Path(urlsplit(file_store_url).path) / key, (0, 0))
    (tmp_path / "spool").mkdir()

    def gc(*flags):
        where = ["--url", redis_url, "--store", file_store_url, "--spool", str(tmp_path / "spool")]
        return CliRunner().invoke(h3render.app, ["gc", *flags, *where])

    told = gc()
    assert "picture                   1                   5  older than 30 days, and no job names it" in told.stdout
    assert told.stderr == ""
    [deleted] = map(json.loads, gc("--yes", "--json", "--results-days", "0").stdout.splitlines())
    assert (deleted["what"], deleted["name"]) == ("picture", BOAT)
    assert list(file_store.list()) == [KITE]
