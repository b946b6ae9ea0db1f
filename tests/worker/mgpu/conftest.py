"""Real rank processes on Gloo. One fleet of each size is shared by all tests that leave it healthy.

A fleet of its own costs a test seconds. It has two ranks, or as many as a fixture says that the test takes:
`fleet_size` is two, `world_size` two and eight; with --full both are four, too, and eight.
"""

from __future__ import annotations

import gc
import multiprocessing.resource_tracker
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from tests.worker.mgpu.runners import CommandRunner
from tests.worker.mgpu.scripts import RunScript, start_script
from worker.mgpu import MGPUController, MGPURunner
from worker.mgpu.world import open_store

WORLD_SIZES = (2, 4, 8)
REDUCED_SIZES = {"world_size": (2, 8), "fleet_size": (2,)}  # without --full
TEST_TIMEOUT_S = 60  # eight ranks on two cores take five to start


@pytest.hookimpl(trylast=True)  # once pytest has put the tests of each size together
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
    for item in [item for item in items if uses(item, "spent_controller")]:
        items.remove(item)
        items.insert(1 + max((at for at, other in enumerate(items) if shares_fleet(other, item)), default=-1), item)


def uses(item: pytest.Item, fixture: str) -> bool:
    return isinstance(item, pytest.Function) and fixture in item.fixturenames


def shares_fleet(item: pytest.Item, spender: pytest.Item) -> bool:
    """Whether it takes the shared fleet of the size that the other spends."""
    if not uses(item, "shared_controller"):
        return False
    return item.callspec.params["world_size"] == spender.callspec.params["world_size"]  # type: ignore[attr-defined]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """world_size where each size counts, also for the shared fleet; fleet_size where two ranks tell as much."""
    own = {name for mark in metafunc.definition.iter_markers("parametrize") for name in named(mark)}
    for name, reduced in REDUCED_SIZES.items():
        if name in metafunc.fixturenames and name not in own:
            sizes = WORLD_SIZES if metafunc.config.getoption("full") else reduced
            metafunc.parametrize(name, sizes, ids="{}-ranks".format, scope="session")


def named(mark: pytest.Mark) -> list[str]:
    """What it parametrizes."""
    names = mark.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


@pytest.fixture(scope="session", autouse=True)
def resource_tracker() -> None:
    """What the libraries below keep until we end: have them make it before anything is counted."""
    multiprocessing.resource_tracker.ensure_running()
    open_store()  # libuv's pipe


@pytest.fixture(scope="session", autouse=True)
def bare_main() -> Iterator[None]:
    """A rank imports the main module of its controller: that is pytest, 0.2 s of CPU that no test is about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__spec__", None)
        patch.setattr(sys.modules["__main__"], "__file__", None)
        yield


@pytest.fixture(scope="session")
def shared_controller(resource_tracker: None, world_size: int) -> Iterator[MGPUController]:
    """Started by a thread that is gone when the first test runs."""
    controller = MGPUController(CommandRunner, num_gpus=world_size, backend="gloo")
    with ThreadPoolExecutor(1) as starter:
        starter.submit(controller.start, timeout=60).result()
    yield controller
    controller.shutdown()


@pytest.fixture
def controller(shared_controller: MGPUController) -> Iterator[MGPUController]:
    """The shared fleet, idle before and after."""
    assert shared_controller.is_alive
    yield shared_controller
    assert shared_controller.is_alive, "a test has broken the shared fleet"
    assert shared_controller.status().job_id is None, "a test has left a job in flight"


@pytest.fixture
def spent_controller(shared_controller: MGPUController) -> MGPUController:
    """The shared fleet, for the one test that ends it: that comes after all others of its size."""
    assert shared_controller.is_alive
    return shared_controller


@pytest.fixture
def new_controller(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., MGPUController]]:
    """Make controllers that end with the test, and leave nothing but the logs of a bad end, in its tmp_path."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sizes = [request.getfixturevalue(name) for name in ("world_size", "fleet_size") if name in request.fixturenames]
    num_gpus = sizes[0] if sizes else 2
    before = resources()
    made: list[MGPUController] = []

    def make(runner_cls: type[MGPURunner] = CommandRunner, **kwargs: Any) -> MGPUController:
        made.append(MGPUController(runner_cls, **{"num_gpus": num_gpus, "backend": "gloo", **kwargs}))
        return made[-1]

    yield make
    while made:
        made.pop().shutdown(graceful_timeout=0)
    await_equal(resources, before)


@pytest.fixture
def new_fleet(new_controller: Callable[..., MGPUController]) -> Callable[..., MGPUController]:
    """The same, started."""

    def start(runner_cls: type[MGPURunner] = CommandRunner, **kwargs: Any) -> MGPUController:
        controller = new_controller(runner_cls, **kwargs)
        controller.start(timeout=60)
        return controller

    return start


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[RunScript]:
    """Run a script; it is killed with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(body: str) -> subprocess.Popen[str]:
        started.append(start_script(tmp_path, body))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def resources() -> tuple[set[int], set[str], int]:
    gc.collect()
    return children(), {path.name for path in Path("/dev/shm").iterdir()}, open_descriptors()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended since
            found.update(map(int, (task / "children").read_text().split()))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter while it is being read
        return False


def await_equal(read: Callable[[], Any], expected: Any, within_s: float = 3.0) -> None:
    """For what nothing notifies us of."""
    with suppress(AssertionError):  # the one below shows both values
        eventually(lambda: read() == expected, timeout_s=within_s)
    assert read() == expected


def assert_gone(pids: list[int], within_s: float) -> None:
    await_equal(lambda: [pid for pid in pids if is_running(pid)], [], within_s)


@pytest.fixture
def descriptors() -> Callable[[], int]:
    """How many descriptors this process has open."""
    return open_descriptors
