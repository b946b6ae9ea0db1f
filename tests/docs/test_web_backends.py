"""The backends of docs/web-backends.md, both alike: real servers on a real Redis and a real S3."""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import cache
from urllib.request import urlopen

import pytest

from jobs.client import Client
from jobs.job_status import JobState
from jobs.store import open_store
from tests.docs.backends import PAGE, SERVE, running_django, running_fastapi
from tests.docs.pages import read_table, section, take
from tests.docs.renders import VIDEO, finish, take_job
from tests.docs.terminal import Terminal
from tests.jobs.leasing import STEP
from tests.waiting import eventually

SUBMIT, FOLLOW = take(PAGE, "submit"), take(PAGE, "follow")
WISH = {"prompt": "a red kite", "seconds": 1, "seed": 3}
RUNNING = {"fastapi": running_fastapi, "django": running_django}


@contextmanager
def running_on(framework, url, s3_server, folder):
    environment = s3_server.environment | {"REDIS_URL": url, "H3_STORE_URL": store_url(s3_server)}
    with RUNNING[framework](folder, environment) as backend:
        yield backend


@pytest.fixture(scope="module")
def start(shared_redis, s3_server, tmp_path_factory):
    """Each backend once, for all tests."""
    with ExitStack() as stack:

        @cache
        def start(framework):
            folder = tmp_path_factory.mktemp(framework)
            return stack.enter_context(running_on(framework, shared_redis.url, s3_server, folder))

        yield start


@pytest.fixture(params=RUNNING)
def backend(request, redis, start):
    """On an empty Redis."""
    return start(request.param)


@pytest.fixture(scope="module")
def store(s3_server):
    """Where the backends are told that results are."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)
        return open_store(store_url(s3_server))


def store_url(s3_server):
    return f"s3://{s3_server.bucket}/docs?endpoint={s3_server.endpoint}"


def kinds(told):
    return [each.event["kind"] for each in told]


def test_a_submit_answers_with_what_is_rendered_and_a_key_gives_the_same_job(backend, redis):
    first = backend.ask("POST", "/renders", {"prompt": "a red kite", "seconds": 2}, Idempotency_Key="order 7")
    again = backend.ask("POST", "/renders", {"prompt": "a red kite", "seconds": 2}, Idempotency_Key="order 7")
    assert first.status == again.status == 202
    assert first.json() == again.json()
    request = first.json()["request"]
    assert (request["width"], request["height"], request["frames"]) == (1344, 768, 56)
    assert redis.lrange("rq:queue:default", 0, -1) == [first.json()["id"].encode()]
    other = backend.ask("POST", "/renders", {"prompt": "a blue kite"}, Idempotency_Key="order 7")
    assert other.status == 409
    assert "'order 7' stands for another request" in other.json()["detail"]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"prompt": "a red kite", "seconds": 99}, "seconds 99.0 is too large; nearest: 15.08"),
        ({"prompt": " "}, "is empty"),
        ({"prompt": "a red kite", "aspect": "wide"}, "write it like 16:9"),
        ({"prompt": "a red kite", "steps": 1000}, "steps"),
        ({"seconds": 2}, "prompt"),
        ([], "object"),
    ],
)
def test_a_wrong_wish_is_told_and_nothing_is_queued(backend, redis, wish, message):
    answer = backend.ask("POST", "/renders", wish)
    assert answer.status == 422
    assert message in str(answer.json()["detail"])
    assert redis.keys() == []


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/events"), ("GET", "/video"), ("DELETE", "")])
def test_a_job_that_nobody_knows_is_not_found(backend, method, path):
    answer = backend.ask(method, f"/renders/nonesuch{path}")
    assert answer.status == 404
    assert "no job nonesuch" in answer.json()["detail"]


def test_a_status_tells_where_a_job_stands_up_to_its_end(backend, redis, store):
    job_id = backend.submit(WISH)
    assert backend.ask("GET", f"/renders/{job_id}").json() == Client(redis).job(job_id).status().model_dump()
    early = backend.ask("GET", f"/renders/{job_id}/video")
    assert early.status == 409
    finish(redis, take_job(redis, job_id), store)
    assert backend.ask("GET", f"/renders/{job_id}").json()["state"] == "finished"
    assert backend.ask("DELETE", f"/renders/{job_id}").status == 409


def test_a_video_is_read_by_a_signed_link_without_keys(backend, redis, store):
    job_id = backend.submit(WISH)
    finish(redis, take_job(redis, job_id), store)
    answer = backend.ask("GET", f"/renders/{job_id}/video")
    assert answer.status in (302, 307)
    with urlopen(answer.headers["Location"]) as video:
        assert video.read() == VIDEO


def test_a_job_that_waits_is_canceled_at_once_and_one_that_runs_is_asked_to_stop(backend, redis):
    waiting, running = backend.submit(WISH), backend.submit(WISH)
    take_job(redis, running)
    assert backend.ask("DELETE", f"/renders/{waiting}").json() == {"has_ended": True}
    assert backend.ask("DELETE", f"/renders/{running}").json() == {"has_ended": False}


def test_events_are_told_as_they_happen_and_the_stream_ends_with_the_last(backend, redis, store):
    job_id = backend.submit(WISH)
    with backend.follow(job_id) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert kinds(stream.read(1)) == ["queued"]
        lease = take_job(redis, job_id)
        assert kinds(stream.read(1)) == ["started"]
        lease.tell(STEP)
        assert kinds(stream.read(1)) == ["step_done"]
        finish(redis, lease, store)
        assert kinds(stream) == ["finished"]
    with backend.follow(job_id, since=Client(redis).job(job_id).news()[-1].id) as stream:
        assert stream.status == 204


def test_whoever_comes_back_with_the_last_id_misses_nothing_and_gets_nothing_twice(backend, redis, store):
    job_id = backend.submit(WISH)
    lease = take_job(redis, job_id)
    seen = []
    for _ in range(3):  # breaks off after each event, while the next ones are told
        lease.tell(STEP, STEP)
        with backend.follow(job_id, since=seen[-1].id if seen else None) as stream:
            seen += stream.read(1)
    lease.tell(STEP)
    finish(redis, lease, store)
    with backend.follow(job_id, since=seen[-1].id) as stream:
        seen += stream
    assert [(told.id, told.event) for told in seen] == [
        (event.id, event.model_dump(mode="json")) for event in Client(redis).job(job_id).news()
    ]
    assert kinds(seen) == ["queued", "started", *["step_done"] * 7, "finished"]


def test_a_stream_goes_on_over_many_keep_alives(backend, redis, store):
    job_id = backend.submit(WISH)
    lease = take_job(redis, job_id)
    with backend.follow(job_id) as stream:
        lines = stream.lines()
        assert [line for line in (next(lines) for _ in range(10)) if line.startswith(":")] == [": nothing new"] * 2
        told = []
        for _ in range(5):
            lease.tell(STEP)
            told.append(next(line for line in lines if line.startswith("id: ")).partition(": ")[2])
            assert next(line for line in lines if line.startswith(":")) == ": nothing new"
        finish(redis, lease, store)
        told += [line.partition(": ")[2] for line in lines if line.startswith("id: ")]
    assert told == [event.id for event in Client(redis).job(job_id).news()[2:]]


def test_who_has_left_is_no_longer_followed(backend, redis):
    job_id = backend.submit(WISH)

    def followers():
        return [client for client in redis.client_list() if client["cmd"] == "xread" and "b" in client["flags"]]

    with backend.follow(job_id) as stream:
        stream.read(1)
        eventually(followers)
    # Whoever follows asks again at every keep-alive: when all connections but ours are still, nobody does.
    eventually(
        lambda: all(int(client["idle"]) >= 1 for client in redis.client_list() if client["cmd"] != "client|list")
    )


def test_an_id_of_no_event_is_refused(backend):
    job_id = backend.submit(WISH)
    with backend.follow(job_id, since="x") as stream:
        assert stream.status == 400


@pytest.mark.parametrize("framework", RUNNING)
def test_redis_may_go_away_and_come_back(framework, redis_server, s3_server, store, tmp_path):
    with running_on(framework, redis_server.url, s3_server, tmp_path) as backend:
        job_id = backend.submit(WISH)
        with backend.follow(job_id) as stream:
            seen = stream.read(1)
            redis_server.stop()
            assert list(stream) == []  # it ends, so a browser connects again
        answer = backend.ask("POST", "/renders", WISH)
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "5"
        assert b"sock" not in answer.body  # where Redis is
        redis_server.start()
        assert backend.ask("GET", f"/renders/{job_id}").status == 200
        client = Client.open(redis_server.url)
        lease = take_job(client.redis, job_id)
        finish(client.redis, lease, store)
        with backend.follow(job_id, since=seen[-1].id) as stream:
            seen += stream
        assert kinds(seen) == ["queued", "started", "finished"]
        client.redis.close()


def test_what_is_typed_in_the_page_prints_what_it_says(redis, start, store, tmp_path):
    _require_curl()
    terminal = Terminal(tmp_path, {}, {"localhost:8000": f"127.0.0.1:{start('fastapi').port}"})
    terminal.run(SUBMIT)
    [job_id] = redis.lrange("rq:queue:default", 0, -1)
    lease = take_job(redis, job_id.decode())
    lease.tell(STEP)
    finish(redis, lease, store)
    terminal.run(FOLLOW)
    assert (tmp_path / "kite.mp4").read_bytes() == VIDEO


def _require_curl():
    if shutil.which("curl") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no `curl` on PATH: apt-get install curl")


def test_each_state_is_told():
    rows = read_table(section(PAGE, "States"))
    assert [cells[0].strip("`") for cells in rows] == list(JobState)
    assert [cells[2] == "yes" for cells in rows] == [state.is_ended for state in JobState]


def test_the_options_of_the_page_are_uvicorns():
    assert SERVE == ["--timeout-graceful-shutdown", "5"]
    command = [sys.executable, "-m", "uvicorn", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert SERVE[0] in shown
