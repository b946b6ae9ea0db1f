"""Fixtures over real servers. A server whose program is missing skips the test at home and fails it in CI."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis

from jobs.embedded import find_binary
from jobs.errors import RedisUnavailable
from tests.servers import RedisServer, S3Server, find_weed, running_redis, running_s3, short_folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="long suites at their full length")


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether a test that is marked `slow` runs at its full length."""
    return bool(pytestconfig.getoption("full"))


@pytest.fixture(scope="session")
def need_redis() -> None:
    """For a test that starts a Redis by itself."""
    _require(find_binary)


@pytest.fixture(scope="session")
def shared_redis(need_redis: None) -> Iterator[RedisServer]:
    """The server behind `redis_url`; a test that stops or kills one takes `redis_server`."""
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_url(shared_redis: RedisServer) -> str:
    """An empty Redis."""
    with Redis.from_url(shared_redis.url) as redis:
        redis.flushall()
    return shared_redis.url


@pytest.fixture
def redis_server(need_redis: None) -> Iterator[RedisServer]:
    """A Redis of this test alone, to kill, pause and start again; its data survive that."""
    with running_redis(append_only=True) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    _require(find_weed)
    with running_s3() as server:
        yield server


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Point boto3, here and in child processes, to the test's server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.environment


@pytest.fixture
def s3_store_url(s3_server: S3Server, s3_environment: dict[str, str]) -> str:
    """An empty prefix of the test's bucket."""
    return f"s3://{s3_server.bucket}/{uuid4().hex}"


@pytest.fixture
def file_store_url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture
def private_folder() -> Iterator[Path]:
    """A folder of mode 700 with a path short enough for unix sockets."""
    with short_folder() as folder:
        yield folder


def _require(find: Callable[[], Path]) -> None:
    try:
        find()
    except (FileNotFoundError, RedisUnavailable) as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
