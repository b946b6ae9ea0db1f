"""The block of docs/operations.md on how much work there is: on a real Redis, with what it tells of."""

import pytest

from jobs.client import Client
from jobs.events import StreamOpened
from jobs.offers import Offer
from jobs.render_times import RenderClass, record_render
from jobs.request import GenerateRequest
from tests.docs.pages import take
from tests.docs.renders import take_job
from tests.docs.terminal import Terminal

BACKLOG = take("operations.md", "backlog")
LARGE = GenerateRequest(prompt="a red kite")
SMALL = GenerateRequest(prompt="an owl", width=864, height=480, frames=141, steps=30)


@pytest.fixture
def farm(redis):
    """Some renders are measured, some wait, and one has its steps behind it."""
    for request, seconds in ((LARGE, 250.0), (SMALL, 50.0)):
        for _ in range(5):
            record_render(redis, RenderClass.of(request.resolve(), Offer()), seconds)
    client = Client(redis)
    take_job(redis, client.submit(LARGE).id).tell(StreamOpened(segments=8, playlist_key="p"))
    for request, count in ((LARGE, 3), (SMALL, 10)):
        for _ in range(count):
            client.submit(request)


def test_the_backlog_is_told_as_on_the_page(farm, redis_url, tmp_path):
    Terminal(tmp_path, {"REDIS_URL": redis_url}).run(BACKLOG)
