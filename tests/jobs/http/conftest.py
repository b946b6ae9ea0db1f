"""The service of these tests: one for all of a file. It looks at the leases of its Redis, so it ends with the file."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from redis import Redis

from tests.jobs.http.rendering import Render
from tests.jobs.http.serving import ADA, BOB, OPERATOR, Service, serving
from tests.servers import RedisServer

WISH = {"prompt": "a kite that only ada may see", "frames": 22}


@pytest.fixture(scope="module")
def shared_service(shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("service")
    never = {"request_limit": "1000000/minute", "submit_limit": "1000000/minute"}
    # Without a secret for webhooks: it would take notices that tests put there for others.
    with serving(shared_redis.url, folder, most_open=3, **never) as service:
        yield service


@pytest.fixture
def service(redis, shared_service: Service) -> Service:
    """With an empty queue."""
    return shared_service


@pytest.fixture
def ada(service: Service) -> Iterator[httpx2.Client]:
    with service.client(ADA) as client:
        yield client


@pytest.fixture
def finished(ada: httpx2.Client, redis: Redis, service: Service) -> str:
    """The id of a finished render of ada, of which there is all that can be asked for."""
    job_id: str = ada.post("/v1/videos", json=WISH).json()["id"]
    render = Render(redis, service.store, job_id)
    render.preview(1)
    render.open_stream(1)
    render.segment()
    render.finish()
    return job_id


@pytest.fixture
def bob(service: Service) -> Iterator[httpx2.Client]:
    with service.client(BOB) as client:
        yield client


@pytest.fixture
def operator(service: Service) -> Iterator[httpx2.Client]:
    with service.client(OPERATOR) as client:
        yield client


@pytest.fixture(scope="module")
def open_service(shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Whoever is on this machine may use it: it has no tokens."""
    with serving(shared_redis.url, tmp_path_factory.mktemp("open"), tokens_file=None) as service:
        yield service
