"""How much each token may ask for."""

import time

import pytest

from tests.jobs.http.rendering import PNG
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


def test_pictures_are_not_stored_for_a_render_that_there_is_no_room_for(ada, service, redis):
    for _ in range(3):
        ada.post("/v1/videos", json=WISH)
    before = list(service.store.list("inputs/"))
    picture = {"first_frame": ("kite.png", PNG + b"another one", "image/png")}
    assert ada.post("/v1/videos", data={"prompt": "x"}, files=picture).status_code == 429
    assert list(service.store.list("inputs/")) == before


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "x", "y": [' + b"{}," * 100_000 + b"0]}",
        b"{" + b",".join(b'"%d": 0' % number for number in range(20_000)) + b"}",
        b'{"prompt": "x", "' + b"y" * 1_000_000 + b'": 0}',
        b'{"prompt": "x", "seed": "' + b"9" * 1_000_000 + b'"}',
        b"[" * 100_000,
    ],
    ids=["parts", "fields", "name", "value", "depth"],
)
def test_a_body_that_is_made_to_be_costly_is_refused_in_few_words(ada, service, body):
    began = time.monotonic()
    answer = ada.post("/v1/videos", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, len(answer.content) < 5000) == (400, True)
    assert time.monotonic() - began < 1


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
