"""Fixtures over real servers. A server whose program is missing skips the test at home and fails it in CI."""

import fcntl
import os

# A row's bits may depend on how many rows a product has, above all on CPUs with AMX. By these they do not, and ranks
# that share rows can be held to the bits of one. MKL and oneDNN read them when they first compute.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# Threads of one operation that wait for each other sleep: in a loop, as is usual, they keep the cores from those they
# wait for. Half of all that some tests compute was that, and more the busier the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis

from jobs.embedded import find_binary
from jobs.errors import RedisUnavailable
from tests.faulty_s3 import FaultyS3, running_faulty_s3
from tests.servers import RedisServer, S3Server, find_openssl, find_weed, running_redis, running_s3, short_folder
from worker.collector import uncollected_imports

TESTS = Path(__file__).parent
LONG = ("tools", "cases", "end_to_end", "worker", "docs")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="long suites at their full length")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What the tests import is not looked through while it is loaded, nor later: 0.1 s each time, an eighth of all."""
    with uncollected_imports():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for processes goes first: files with few and long tests would end a parallel run one by one."""
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] not in LONG)


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether a test that is marked `slow` runs at its full length."""
    return bool(pytestconfig.getoption("full"))


@pytest.fixture(scope="session")
def need_redis() -> None:
    """For a test that starts a Redis by itself."""
    require(find_binary)


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
def redis(redis_url: str) -> Iterator[Redis]:
    """A client of it."""
    with Redis.from_url(redis_url) as redis:
        yield redis


@pytest.fixture
def redis_server(need_redis: None) -> Iterator[RedisServer]:
    """A Redis of this test alone, to kill, pause and start again; its data survive that."""
    with running_redis(append_only=True) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    require(find_weed)
    require(find_openssl)
    with running_s3() as server, reading_botocores_data_once():
        yield server


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Point boto3, here and in child processes, to the test's server."""
    return replace_aws(s3_server.environment, monkeypatch)


@pytest.fixture
def s3_store_url(s3_server: S3Server, s3_environment: dict[str, str]) -> str:
    """An empty prefix of the test's bucket."""
    return f"s3://{s3_server.bucket}/{uuid4().hex}"


@pytest.fixture
def tls_s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same over TLS, where boto3 signs and frames bodies in another way than over plain HTTP."""
    return replace_aws(s3_server.tls_environment, monkeypatch)


@pytest.fixture
def tls_s3_store_url(s3_server: S3Server, tls_s3_environment: dict[str, str]) -> str:
    """An empty prefix of the test's bucket, over TLS."""
    return f"s3://{s3_server.bucket}/{uuid4().hex}"


@pytest.fixture
def faulty_s3(
    s3_server: S3Server, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyS3]:
    """A proxy before the test's server, to which boto3 now goes, here and in child processes; told to fail by the test.

    What is really stored is seen past it: `open_store(f"{s3_store_url}?endpoint={s3_server.endpoint}")`.
    """
    with running_faulty_s3(s3_server.endpoint) as faulty:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", faulty.endpoint)
        yield faulty


@pytest.fixture
def file_store_url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a toy's checkpoint, to read and to copy: all processes of a run share it."""
    from h3.tiny import write_tiny  # most tests need no torch

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    root, partial = folder / "tiny-checkpoint", folder / "tiny-checkpoint.partial"
    with (folder / "tiny-checkpoint.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            write_tiny(partial, seed=0)
            partial.rename(root)
    return root


@pytest.fixture
def private_folder() -> Iterator[Path]:
    """A folder of mode 700 with a path short enough for unix sockets."""
    with short_folder() as folder:
        yield folder


@contextmanager
def reading_botocores_data_once() -> Iterator[None]:
    """Each session of boto3 reads anew what S3 and all endpoints are: 0.2 s of each store that is opened."""
    import botocore.session  # most tests need no store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


def replace_aws(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Until the patch is undone, boto3 in this process and its children knows of no other store."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def require(find: Callable[[], Path]) -> None:
    try:
        find()
    except (FileNotFoundError, RedisUnavailable) as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
