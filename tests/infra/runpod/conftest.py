"""The server with a clock that stands still, once for each version of the document, and a plain HTTP client."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.infra.runpod.catalog import SERVER_EDITION
from tests.infra.runpod.server import RunPod, running_runpod


@pytest.fixture(params=[False, True], ids=["document", "later document"])
def later(request: pytest.FixtureRequest) -> bool:
    """Whether a test runs on the document's later version."""
    return request.param


@pytest.fixture
def runpod(later: bool) -> Iterator[RunPod]:
    with running_runpod(later=later) as server:
        yield server


@pytest.fixture
def http(runpod: RunPod) -> Iterator[httpx2.Client]:
    with client_of(runpod) as client:
        yield client


def client_of(runpod: RunPod) -> httpx2.Client:
    # Without TLS to check: to load the certificates takes longer than most of these tests.
    headers = {"Authorization": f"Bearer {runpod.key}"}
    return httpx2.Client(base_url=runpod.url, headers=headers, verify=False, trust_env=False, timeout=5.0)


def body(**fields: object) -> dict:
    """A create that RunPod accepts, with other fields on top."""
    return {"name": "h3-1", "image": "h3:1", "gpu": {"id": SERVER_EDITION, "count": 8}} | fields
