"""Who may do what."""

import pytest

from tests.jobs.http.serving import ADA, TOKENS

WISH = {"prompt": "a red kite", "frames": 22}
EVERY_USE = [
    ("GET", ""),
    ("GET", "/content"),
    ("HEAD", "/content"),
    ("GET", "/content?variant=thumbnail"),
    ("GET", "/events"),
    ("GET", "/hls/playlist.m3u8"),
    ("GET", "/hls/1/init.mp4"),
    ("POST", "/cancel"),
    ("DELETE", ""),
]
ids = [f"{method} {path}" for method, path in EVERY_USE]


@pytest.mark.parametrize(("method", "path"), EVERY_USE, ids=ids)
def test_nobody_is_let_in_without_a_token(service, finished, method, path):
    with service.client(None) as nobody:
        for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": ADA}, {"Cookie": "h3render=a:9:b"}):
            answer = nobody.request(method, f"/v1/videos/{finished}{path}", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), EVERY_USE, ids=ids)
def test_another_ones_video_is_as_if_it_were_not_there(bob, ada, finished, method, path):
    answer, none = (bob.request(method, f"/v1/videos/{name}{path}") for name in (finished, "0" * 32))
    assert answer.status_code == none.status_code == 404
    assert answer.text.replace(finished, "0" * 32) == none.text
    assert ada.get(f"/v1/videos/{finished}").json()["status"] == "completed"


def test_lists_are_of_ones_own_and_an_operator_sees_all(ada, bob, operator, redis):
    mine, theirs = (client.post("/v1/videos", json=WISH).json()["id"] for client in (ada, bob))

    def listed(client):
        return [video["id"] for video in client.get("/v1/videos").json()["data"]]

    assert (listed(ada), listed(bob), listed(operator)) == ([mine], [theirs], [theirs, mine])
    assert bob.get(f"/v1/videos?after={mine}").status_code == 404
    assert operator.post(f"/v1/videos/{mine}/cancel").json()["error"]["code"] == "canceled"


def test_another_ones_idempotency_key_is_another_key(ada, bob):
    key = {"Idempotency-Key": "one"}
    first, again, other = (client.post("/v1/videos", json=WISH, headers=key).json()["id"] for client in (ada, ada, bob))
    assert first == again != other


def test_an_idempotency_key_of_another_request_is_refused(ada):
    key = {"Idempotency-Key": "one"}
    ada.post("/v1/videos", json=WISH, headers=key)
    assert ada.post("/v1/videos", json=WISH | {"steps": 3}, headers=key).status_code == 409


@pytest.mark.parametrize(
    "job_id", ["..", "%2e%2e", "..%2f..%2fetc", "a%00b", "*", "x" * 99, "caf%C3%A9", "a:b", "inputs"]
)
def test_an_id_that_no_job_could_have_is_unknown(ada, job_id):
    for path in ("", "/content", "/hls/1/init.mp4", "/events"):
        assert ada.get(f"/v1/videos/{job_id}{path}").status_code in (404, 405)


@pytest.mark.parametrize(
    "name", ["..%2f..%2fresult.json", "video.mp4", "report.json", "%2e%2e", "checkpoint-0001.safetensors"]
)
def test_only_the_pieces_of_the_stream_are_below_the_playlist(ada, finished, name):
    assert ada.get(f"/v1/videos/{finished}/hls/1/{name}").status_code == 404


@pytest.fixture
def anyone(redis, open_service):
    with open_service.client(None) as client:
        yield client


def test_without_tokens_whoever_is_on_this_machine_sees_and_does_all(anyone, redis):
    job_id = anyone.post("/v1/videos", json=WISH).json()["id"]
    assert [video["id"] for video in anyone.get("/v1/videos").json()["data"]] == [job_id]
    assert redis.hget(f"rq:job:{job_id}", "h3_owner") is None


def test_a_name_that_somebody_lets_lead_here_opens_nothing(anyone):
    answer = anyone.get("/v1/videos", headers={"Host": "rebound.example.org"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
def test_another_sites_page_submits_nothing(anyone, redis, headers):
    answer = anyone.post("/v1/videos", data={"prompt": "x"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")
    assert not redis.llen("rq:queue:default")


def test_another_sites_page_signs_nobody_in(service):
    with service.client(None) as nobody:
        signed_in = nobody.post("/login", data={"token": ADA})
        assert (signed_in.status_code, "h3render" in signed_in.cookies) == (303, True)
        foreign = nobody.post("/login", data={"token": ADA}, headers={"Origin": "https://evil.example"})
        assert (foreign.status_code, "h3render" in foreign.cookies) == (403, False)


def test_tokens_are_listed_nowhere(ada, operator):
    for path in ("/v1/videos", "/openapi.json", "/healthz", "/v1/models"):
        text = operator.get(path).text
        assert not [line for line in TOKENS.split() if len(line) > 20 and line in text]
