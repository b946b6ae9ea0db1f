"""How much each token may ask for."""

import pytest

from tests.jobs.http.serving import BOB, serving
from tests.waiting import eventually

WISH = {"prompt": "a red kite", "frames": 22}


def test_a_token_has_so_many_open_renders_and_is_told_when_to_come_again(ada, bob, redis):
    jobs = [ada.post("/v1/videos", json=WISH).json()["id"] for _ in range(3)]
    refused = ada.post("/v1/videos", json=WISH)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_open")
    assert int(refused.headers["retry-after"]) > 0
    assert bob.post("/v1/videos", json=WISH).status_code == 200
    ada.post(f"/v1/videos/{jobs[0]}/cancel")
    assert ada.post("/v1/videos", json=WISH).status_code == 200


@pytest.fixture
def strict(redis, redis_url, tmp_path):
    with (
        serving(redis_url, tmp_path, request_limit="4/hour", submit_limit="2/hour", most_body_bytes=10_000) as service,
        service.client() as client,
    ):
        yield service, client


def test_a_token_that_asks_too_often_is_told_when_to_come_again(strict):
    service, client = strict
    answers = [client.get("/v1/videos") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2
    assert 0 < int(answers[-1].headers["retry-after"]) <= 3600
    assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
    with service.client(BOB) as other:
        assert other.get("/v1/videos").status_code == 200


def test_submits_have_a_limit_of_their_own(strict, redis):
    _, client = strict
    assert [client.post("/v1/videos", json=WISH).status_code for _ in range(3)] == [200, 200, 429]
    assert redis.llen("rq:queue:default") == 2


def test_a_token_has_so_many_event_streams_and_no_more(redis, redis_url, tmp_path):
    with serving(redis_url, tmp_path, most_streams=1) as service, service.client() as client:
        url = f"/v1/videos/{client.post('/v1/videos', json=WISH).json()['id']}/events"
        with client.stream("GET", url) as first:
            lines = first.iter_lines()
            assert next(lines)
            refused = client.get(url)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
            assert int(refused.headers["retry-after"]) > 0
        eventually(lambda: streams(client, url))  # the service has noticed that the first is over


def streams(client, url):
    with client.stream("GET", url) as answer:
        return answer.status_code == 200


def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so(strict, redis):
    _, client = strict
    body = b'{"prompt": "' + b"x" * 20_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    for content in (body, iter([body])):
        assert client.post("/v1/videos", content=content, headers=headers).status_code == 413
    assert not redis.llen("rq:queue:default")
