"""Real rank processes on Gloo. One fleet is shared by all tests that leave it healthy."""

from __future__ import annotations

import gc
import multiprocessing.resource_tracker
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from tests.worker.mgpu.runners import CommandRunner
from worker.mgpu import MGPUController, MGPURunner
from worker.mgpu.world import open_store


@pytest.fixture(scope="session", autouse=True)
def resource_tracker() -> None:
    """What the libraries below keep until we end: have them make it before anything is counted."""
    multiprocessing.resource_tracker.ensure_running()
    open_store()  # libuv's pipe


@pytest.fixture(scope="session")
def shared_controller(resource_tracker: None) -> Iterator[MGPUController]:
    controller = MGPUController(CommandRunner, num_gpus=2, backend="gloo")
    controller.start(timeout=60)
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
def new_controller() -> Iterator[Callable[..., MGPUController]]:
    """Make controllers that end with the test, and leave nothing."""
    before = resources()
    made: list[MGPUController] = []

    def make(runner_cls: type[MGPURunner] = CommandRunner, **kwargs: Any) -> MGPUController:
        made.append(MGPUController(runner_cls, **{"num_gpus": 2, "backend": "gloo", **kwargs}))
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


def resources() -> tuple[set[int], set[str], int]:
    gc.collect()
    return children(), {path.name for path in Path("/dev/shm").iterdir()}, open_descriptors()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
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
