"""Events as a browser gets them: each once, in order, whatever breaks off."""

from itertools import islice

import pytest

from jobs.http import app, event_stream
from tests.jobs.http.rendering import Render
from tests.jobs.http.serving import read_told, serving

WISH = {"prompt": "a red kite", "frames": 22}


@pytest.fixture
def render(ada, redis, service):
    return Render(redis, service.store, ada.post("/v1/videos", json=WISH).json()["id"])


@pytest.fixture
def url(render):
    return f"/v1/videos/{render.lease.job_id}/events"


def kinds(told):
    return [one.kind for one in told]


def test_events_are_told_from_the_first_then_live_and_end_with_the_last(ada, render, url):
    with ada.stream("GET", url) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        told = read_told(answer.iter_lines())
        assert kinds(islice(told, 2)) == ["queued", "started"]
        render.step(1)
        live = next(told)
        assert (live.kind, live.data["step"], live.data["id"]) == ("step_done", 1, live.id)
        render.finish()
        assert kinds(told) == ["finished"]


def test_a_stream_that_broke_off_goes_on_with_the_next_event(ada, render, url):
    for step in range(1, 5):
        render.step(step)
    with ada.stream("GET", url) as answer:
        heard = list(islice(read_told(answer.iter_lines()), 3))
    render.finish()
    with ada.stream("GET", url, headers={"Last-Event-ID": heard[-1].id}) as answer:
        rest = list(read_told(answer.iter_lines()))
    with ada.stream("GET", url) as answer:
        assert heard + rest == list(read_told(answer.iter_lines()))
    with ada.stream("GET", f"{url}?since={heard[-1].id}") as answer:
        assert list(read_told(answer.iter_lines())) == rest


def test_who_has_heard_the_last_event_is_told_to_stop(ada, render, url):
    render.finish()
    with ada.stream("GET", url) as answer:
        last = list(read_told(answer.iter_lines()))[-1]
    assert ada.get(url, headers={"Last-Event-ID": last.id}).status_code == 204


def test_of_a_job_that_has_ended_and_whose_events_are_gone_a_browser_is_told_to_stop(ada, render, url, redis):
    render.finish()
    redis.delete(f"h3:events:{render.lease.job_id}")
    assert ada.get(url).status_code == 204


def test_an_id_that_no_event_could_have_is_refused(ada, url):
    answer = ada.get(url, headers={"Last-Event-ID": "yesterday"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_a_quiet_stream_shows_that_it_lives(ada, render, url, monkeypatch):
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.1)
    with ada.stream("GET", url) as answer:
        assert ": nothing new" in answer.iter_lines()


def test_a_stream_outlasts_a_restart_of_redis_and_others_get_a_clear_503(redis_server, tmp_path):
    from redis import Redis

    with (
        serving(redis_server.url, tmp_path) as service,
        service.client() as client,
        Redis.from_url(redis_server.url) as redis,
    ):
        render = Render(redis, service.store, client.post("/v1/videos", json=WISH).json()["id"])
        with client.stream("GET", f"/v1/videos/{render.lease.job_id}/events") as answer:
            told = read_told(answer.iter_lines())
            assert kinds(islice(told, 2)) == ["queued", "started"]
            redis_server.stop()
            refused = client.get("/v1/videos")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            assert int(refused.headers["retry-after"]) > 0
            assert client.get("/healthz").status_code == 503
            assert str(redis_server.url) not in refused.text
            redis_server.start()
            render.step(1)
            render.finish()
            assert kinds(told) == ["step_done", "finished"]
        assert client.get("/healthz").status_code == 200


def test_a_redis_that_hangs_is_told_of_before_a_caller_gives_up(redis_server, tmp_path, monkeypatch):
    monkeypatch.setattr(app, "ANSWER_TIMEOUT_S", 0.3)
    with serving(redis_server.url, tmp_path) as service, service.client() as client:
        assert client.get("/v1/videos").status_code == 200
        redis_server.pause()
        try:
            assert client.get("/v1/videos").status_code == client.get("/healthz").status_code == 503
        finally:
            redis_server.resume()
        assert client.get("/v1/videos").status_code == 200
