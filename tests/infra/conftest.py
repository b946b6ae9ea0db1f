"""The server with a clock that stands still, once for each version of the document, and a plain HTTP client."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.infra.runpod.clients import client_of
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
