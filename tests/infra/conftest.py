"""The server with a clock that stands still, once for each version of the document, and a plain HTTP client."""

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx2
import pytest
from pydantic import SecretStr

from infra.clock import Clock
from infra.runpod import RunPod as Api
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


@pytest.fixture
def clock(runpod: RunPod) -> Clock:
    """The server's, which goes on when the client sleeps."""
    return Clock(
        now=lambda: datetime.fromtimestamp(runpod.now, UTC),
        monotonic=lambda: runpod.now,
        sleep=runpod.advance,
        chance=lambda: 0.5,
    )


@pytest.fixture
def api(runpod: RunPod, clock: Clock) -> Iterator[Api]:
    with Api(runpod.url, SecretStr(runpod.key), clock) as api:
        yield api
