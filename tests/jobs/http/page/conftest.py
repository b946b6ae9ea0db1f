"""The page in a browser, over a service without tokens; a worker's part is played by the test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page

from jobs.client import Client
from jobs.http.page import batch_reading, shared
from jobs.workers import write_worker
from tests.browser import browsing, find_browser, running_browser
from tests.conftest import require
from tests.jobs.http.page.film import Film, make_film
from tests.jobs.http.rendering import Render
from tests.jobs.http.serving import Service
from tests.jobs.records import record

STEPS = 10


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """For one file: as long as it runs, no other test of this process can run an event loop."""
    require(find_browser)
    with running_browser() as browser:
        yield browser


@pytest.fixture(autouse=True, scope="module")
def _unshared_looks() -> Iterator[None]:
    """Nothing of another test is shown, nor what its window asked for as it was closed: the service outlives both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "GOOD_FOR_S", 0.0)
        patch.setattr(batch_reading, "SHORTEST_REST_S", 0.0)
        patch.setattr(batch_reading, "RESTS_A_LOOK", 0.0)
        yield


@pytest.fixture
def farm(redis, open_service) -> Service:
    """With an empty queue, and with one worker that says that it is alive."""
    write_worker(redis, record(redis))
    return open_service


@pytest.fixture
def browse(chromium, farm) -> Iterator[Callable[..., Page]]:
    """Open the page in a window of its own."""
    with ExitStack() as stack:

        def browse(path: str = "/", **options: object) -> Page:
            page = stack.enter_context(browsing(chromium, farm.url, **options))
            page.goto(path)
            return page

        yield browse


@pytest.fixture(scope="session")
def film(tmp_path_factory) -> Film:
    return make_film(tmp_path_factory.mktemp("film"))


@pytest.fixture
def submit(redis) -> Callable[..., str]:
    """Queue a render; its id."""

    def submit(prompt: str = "a red kite over the sea", **fields: object) -> str:
        request = {"prompt": prompt, "width": 320, "height": 192, "frames": 73, "steps": STEPS, "seed": 7}
        return Client(redis).submit(request | fields).id

    return submit


@pytest.fixture
def claim(redis, farm) -> Callable[..., Render]:
    """Take a job as a worker does."""
    return lambda job_id, **options: Render(redis, farm.store, job_id, **({"steps": STEPS} | options))
