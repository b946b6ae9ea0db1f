"""start(): what it takes along, how it fails, what it leaves."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from tests.worker.mgpu.conftest import children
from tests.worker.mgpu.runners import HiddenRunner, QueueRunner, SetupRunner
from worker.mgpu import (
    ControllerAlreadyStartedError,
    MGPUController,
    MGPURunner,
    StartError,
    StartTimeoutError,
    SymmetricRunnerError,
)
from worker.mgpu.world import open_store

Make = Callable[..., MGPUController]


def test_one_rank_alone_has_groups_and_tensors_and_what_it_said_stays(new_controller: Make, tmp_path: Path) -> None:
    """13, 55, 93: the same runner on a laptop. Setup's keywords may hold tensors; received ones survive the fleet."""
    controller = new_controller(num_gpus=1, logs_specs=SimpleNamespace(root_log_dir=str(tmp_path / "logs")))
    controller.start(weights=torch.arange(50_000))
    (told,) = controller.stream(command="describe")
    assert told["sums"] == [0, 0]
    assert torch.equal(told["kwargs"]["weights"], torch.arange(50_000))
    small, large = torch.randn(8), torch.randn(100_000)
    ((_, received),) = controller.stream(command="echo", small=small, large=large)
    stream = controller.stream(command="steps", upto=1_000_000)
    stream.request_stop()
    stream.drain()
    controller.stream(command="say", text="kept").drain()
    controller.shutdown()
    (log,) = (tmp_path / "logs").glob("*/rank0.log")  # a folder of its own: another fleet may be given the same
    assert "kept" in log.read_text()
    assert torch.equal(received["small"], small)
    assert torch.equal(received["large"], large)
    received["large"].add_(1)


def test_a_failing_setup_fails_the_start(new_controller: Make, fleet_size: int) -> None:
    """15, 79: every failing rank is told, and shutdown has nothing to do."""
    controller = new_controller(SetupRunner)
    with pytest.raises(StartError, match="boom") as caught:
        controller.start(timeout=60, faults=dict.fromkeys(range(fleet_size), "key error"))
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert sorted(failure.rank for failure in error.failures) == list(range(fleet_size))
    assert error.cause_type == "KeyError"
    assert f"pid {error.pid}" in str(error)
    assert "in setup" in error.remote_traceback
    assert not controller.is_alive
    controller.shutdown()


def test_a_rank_that_exits_in_setup_fails_the_start(new_controller: Make) -> None:
    """17: with whatever code, while the other waits for ever."""
    controller = new_controller(SetupRunner)
    with pytest.raises(StartError) as caught:
        controller.start(timeout=60, faults={1: "exit 0", 0: "wait"})
    assert (caught.value.rank, caught.value.cause_type) == (1, "exit code 0")


class EarlyRunner(QueueRunner):
    def __init__(self) -> None:
        self.was_initialized = dist.is_initialized()

    def was_early(self) -> Iterator[Any]:
        yield not self.was_initialized


def test_a_failed_start_may_be_tried_again_and_of_two_threads_that_do_one_wins_and_passes_a_queue(
    new_controller: Make, fleet_size: int
) -> None:
    """11, 12, 14, 18, 22, 79, 82: the first timeout bounds nothing later; a runner is built before its groups."""
    controller = new_controller(EarlyRunner)
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with pytest.raises(StartTimeoutError):
        controller.start(timeout=0.01)
    outcomes: list[object] = []

    def start() -> None:
        try:
            outcomes.append(controller.start(timeout=60, queue=queue))
        except RuntimeError as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [ControllerAlreadyStartedError, None]
    assert controller.is_alive
    assert list(controller.stream(command="was_early")) == [True] * fleet_size
    assert list(controller.stream(command="pass_on", number=5)) == [5] * (fleet_size - 1)
    controller.shutdown()
    queue.close()


def test_an_unpicklable_runner_is_refused_before_any_process(new_controller: Make) -> None:
    """21"""
    lock = threading.Lock()

    class Holder(MGPURunner):
        def __call__(self) -> Iterator[Any]:
            yield lock

    before = children()
    controller = new_controller(Holder)
    with pytest.raises(TypeError, match=r"Holder.__call__ -> lock is a lock"):
        controller.start()
    assert children() == before


def test_unpicklable_setup_keywords_fail_the_start(new_controller: Make) -> None:
    """21"""
    controller = new_controller()
    with pytest.raises((StartError, TypeError), match="pickle"):
        controller.start(bad=threading.Lock())


def test_a_runner_from_a_function_travels_by_value(new_controller: Make) -> None:
    """19, 20: with what it closes over, and classes beside it keep their identity."""
    offset = 40

    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

    class Closure(MGPURunner):
        def __call__(self, *, local: Local) -> Iterator[Any]:
            assert isinstance(local, Local)
            yield Local(local.number + offset)

    controller = new_controller(Closure, num_gpus=1)
    controller.start()
    (item,) = controller.stream(local=Local(2))
    assert type(item) is Local
    assert item.number == 42


UNIMPORTABLE = """
import dataclasses
from worker.mgpu import MGPURunner, RunnerError

@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    number: int

class OwnError(RunnerError):
    pass

def double(number):
    return 2 * number

class Runner(MGPURunner):
    def __call__(self, *, item, refuse=False):
        if refuse:
            raise OwnError("no")
        assert isinstance(item, Item)
        yield Item(double(item.number))
        return Item(self.rank)
"""


@pytest.fixture
def unimportable(tmp_path: Path) -> Iterator[ModuleType]:
    """A loaded module that no other process finds."""
    path = tmp_path / "hidden_away.py"
    path.write_text(UNIMPORTABLE)
    spec = importlib.util.spec_from_file_location("hidden_away", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["hidden_away"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["hidden_away"]


def test_an_unimportable_module_travels_by_value(
    new_controller: Make, fleet_size: int, unimportable: ModuleType
) -> None:
    """19, 20, 68"""
    controller = new_controller(unimportable.Runner)
    controller.start()
    stream = controller.stream(item=unimportable.Item(4))
    assert [next(stream) for _ in range(fleet_size)] == [unimportable.Item(8)] * fleet_size
    with pytest.raises(StopIteration) as end:
        next(stream)
    assert end.value.value == [unimportable.Item(rank) for rank in range(fleet_size)]
    with pytest.raises(SymmetricRunnerError) as refused:
        next(controller.stream(item=None, refuse=True))
    assert [type(error) for error in refused.value.errors] == [unimportable.OwnError] * fleet_size


def test_a_call_that_is_no_generator_is_a_refusal_and_inference_mode_the_runners_business(new_fleet: Make) -> None:
    """41, 44"""
    controller = new_fleet(HiddenRunner, num_gpus=1)
    with pytest.raises(SymmetricRunnerError, match="not a generator"):
        next(controller.stream(generates=False))
    assert controller.is_alive
    assert list(controller.stream(generates=True)) == [True]


@pytest.mark.slow
def test_fleets_start_at_the_same_moment_and_run_side_by_side(
    new_controller: Make, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9, 26: own ports, own jobs; one's end is nothing to the other. The environment names no port of theirs.

    vllm-project/vllm#39015 and pytorch/pytorch#169142 picked a free port and bound it later.
    """
    monkeypatch.setenv("MASTER_PORT", "1")
    controllers = [new_controller(num_gpus=1) for _ in range(20 if full else 3)]
    together = threading.Barrier(len(controllers))

    def start(controller: MGPUController) -> list[object]:
        together.wait()
        controller.start(timeout=60)
        return list(controller.stream(command="echo"))

    with ThreadPoolExecutor(len(controllers)) as pool:
        assert list(pool.map(start, controllers)) == [[(0, {})]] * len(controllers)
    first, second, *_ = controllers
    first_stream, second_stream = first.stream(command="count", upto=3), second.stream(command="count", upto=3)
    assert len(list(first_stream)) == 3
    first.shutdown(graceful_timeout=0)
    assert len(list(second_stream)) == 3


def test_stores_that_open_at_the_same_moment_do_not_clash() -> None:
    """26"""
    together = threading.Barrier(20)

    def race(number: int) -> TCPStore:
        together.wait()
        store = open_store()
        store.set("owner", str(number))
        return store

    with ThreadPoolExecutor(20) as pool:
        stores = list(pool.map(race, range(20)))
    assert len({store.port for store in stores}) == 20
    assert [store.get("owner") for store in stores] == [str(number).encode() for number in range(20)]
