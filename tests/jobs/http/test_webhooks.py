"""A service that calls webhooks, on a Redis that no other service looks at."""

import pytest
from openai import OpenAI
from redis import Redis

from tests.jobs.http.rendering import Render
from tests.jobs.http.serving import WEBHOOK_SECRET, serving
from tests.jobs.http.webhooks.receiver import running_receiver
from tests.waiting import eventually

WISH = {"prompt": "a red kite", "frames": 22}


@pytest.fixture
def redis(redis_server):
    with Redis.from_url(redis_server.url) as redis:
        yield redis


def test_a_receiver_is_called_with_the_video_as_the_api_tells_it(redis, redis_server, tmp_path):
    with (
        serving(redis_server.url, tmp_path, webhook_secret=WEBHOOK_SECRET, webhook_private=True) as service,
        service.client() as client,
        running_receiver() as receiver,
    ):
        job_id = client.post("/v1/videos", json=WISH | {"webhook": receiver.url}).json()["id"]
        Render(redis, service.store, job_id).finish()
        [call] = eventually(lambda: list(receiver.calls))
        told = client.get(f"/v1/videos/{job_id}").json()
    with OpenAI(api_key="none", webhook_secret=WEBHOOK_SECRET) as reader:
        event = reader.webhooks.unwrap(call.body, call.headers)
    assert event.type == "video.completed"
    assert event.data.to_dict() == told


def test_private_addresses_are_refused_at_the_submit(redis, redis_server, tmp_path):
    with serving(redis_server.url, tmp_path, webhook_secret=WEBHOOK_SECRET) as service, service.client() as client:
        for url in (
            "http://127.0.0.1/x",
            "http://localhost:8000/",
            "http://[::ffff:10.0.0.1]/",
            "http://a:b@host.org/",
        ):
            answer = client.post("/v1/videos", json=WISH | {"webhook": url})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert not redis.llen("rq:queue:default")
