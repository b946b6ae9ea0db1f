"""Dispatch, iteration, ends and ownership, on the shared fleet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.mgpu.conftest import await_equal
from tests.worker.mgpu.runners import Piece, TwoArgumentError
from worker.mgpu import (
    AsymmetricRunnerError,
    ControllerAlreadyStartedError,
    ControllerBusyError,
    MGPUController,
    RunnerError,
    State,
    Stream,
    SymmetricRunnerError,
)


def by_rank(stream: Stream) -> dict[int, list[Any]]:
    items: dict[int, list[Any]] = {}
    for item in stream:
        items.setdefault(stream.last_rank, []).append(item)
    return items


def values(stream: Stream) -> Any:
    """What the ranks returned, by way of `yield from`."""
    returned: list[Any] = []

    def collect() -> Any:
        returned.append((yield from stream))

    for _ in collect():
        pass
    return returned[0]


def test_every_rank_knows_its_place(controller: MGPUController, world_size: int) -> None:
    """6, 8, 13, 27, 44"""
    items = by_rank(controller.stream(command="describe"))
    assert sorted(items) == list(range(world_size))
    for rank, (told,) in items.items():
        assert (told["rank"], told["world_size"], told["device"]) == (rank, world_size, "cpu")
        assert told["devices"] == ["cpu"] * world_size
        assert told["same_group"]
        assert told["sums"] == [sum(range(world_size))] * 2
        assert told["environment"] == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "localhost",
        }
        assert told["threads"] == max(1, len(os.sched_getaffinity(0)) // world_size)
        assert not told["inference"]
        assert told["kwargs"] == {}


def test_the_collector_of_every_rank_is_on(controller: MGPUController, world_size: int) -> None:
    """It is off while a rank imports."""
    assert dict(controller.stream(command="collects_garbage")) == dict.fromkeys(range(world_size), True)


def test_the_callers_environment_is_left_alone(controller: MGPUController) -> None:
    """26"""
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_RANK"} & set(os.environ)


def test_a_second_start_is_refused_and_the_fleet_undisturbed(controller: MGPUController) -> None:
    """14"""
    with pytest.raises(ControllerAlreadyStartedError):
        controller.start()
    assert controller.is_alive


def test_stream_returns_before_the_job_is_done(controller: MGPUController) -> None:
    """28"""
    began = time.monotonic()
    stream = controller.stream(command="steps", upto=1_000_000)
    assert time.monotonic() - began < 0.1
    assert controller.status().state is State.RUNNING
    stream.request_stop()
    stream.drain()


def test_the_fleet_works_without_anybody_iterating(controller: MGPUController, world_size: int, tmp_path: Path) -> None:
    """28, 30, 43: the job ends by itself, but is in flight until its owner has read the end."""
    stream = controller.stream(command="after_the_last_yield", path=tmp_path)
    ended = {f"finally-{rank}" for rank in range(world_size)}
    await_equal(lambda: {path.name for path in tmp_path.iterdir()}, ended)
    with pytest.raises(ControllerBusyError) as busy:
        controller.stream(command="nothing")
    assert busy.value.job_id == stream.job_id
    assert sorted(stream) == list(range(world_size))
    controller.stream(command="nothing").drain()


def test_of_many_callers_one_gets_the_controller(controller: MGPUController) -> None:
    """30"""
    barrier = threading.Barrier(8)

    def attempt(_: int) -> bool:
        barrier.wait()
        try:
            stream = controller.stream(command="count", upto=3)
        except ControllerBusyError:
            barrier.wait()
            return False
        barrier.wait()
        stream.drain()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


@pytest.mark.parametrize("kwargs", [{"command": "echo", "nonsense": {}}, {}])
def test_keywords_reach_the_runner(controller: MGPUController, world_size: int, kwargs: dict[str, Any]) -> None:
    """32"""
    if kwargs:
        assert dict(controller.stream(**kwargs)) == {rank: {"nonsense": {}} for rank in range(world_size)}
        return
    with pytest.raises(SymmetricRunnerError, match="command"):
        list(controller.stream(**kwargs))


def test_yields_come_one_by_one_in_the_order_of_each_rank(controller: MGPUController, world_size: int) -> None:
    """33"""
    items = by_rank(controller.stream(command="count", upto=50))
    assert items == {rank: [(rank, number) for number in range(50)] for rank in range(world_size)}


def test_the_end_carries_what_the_ranks_returned(controller: MGPUController, world_size: int) -> None:
    """34"""
    assert values(controller.stream(command="count", upto=2)) == [10 * rank for rank in range(world_size)]
    assert values(controller.stream(command="echo")) == [None] * world_size


def test_an_ended_stream_stays_ended(controller: MGPUController) -> None:
    """35, 37, 42"""
    stream = controller.stream(command="nothing")
    assert list(stream) == []
    with pytest.raises(StopIteration):
        next(stream)
    stream.drain()
    stream.drain()


def test_only_the_dispatching_thread_may_read(controller: MGPUController, world_size: int) -> None:
    """36"""
    stream = controller.stream(command="count", upto=2)
    with ThreadPoolExecutor(1, thread_name_prefix="stranger") as pool:
        for read in (lambda: next(stream), stream.drain):
            with pytest.raises(RuntimeError, match=r"MainThread.*stranger"):
                pool.submit(read).result()
    assert len(list(stream)) == 2 * world_size


def test_ownership_can_be_handed_over(controller: MGPUController, world_size: int) -> None:
    """36"""
    read: list[object] = []
    stream = controller.stream(command="count", upto=2)
    heir = threading.Thread(target=lambda: read.extend(stream))
    stream.transfer(heir)
    heir.start()
    heir.join()
    assert len(read) == 2 * world_size


@pytest.mark.parametrize("ranks", [None, [1]], ids=["symmetric", "asymmetric"])
def test_drain_frees_the_controller_and_swallows_refusals(controller: MGPUController, ranks: list[int] | None) -> None:
    """37"""
    stream = controller.stream(command="refuse", kind="runner", ranks=ranks)
    next(stream)
    stream.drain()
    stream.drain()
    assert controller.status().state is State.IDLE


def test_a_stream_drains_as_a_context_manager(controller: MGPUController) -> None:
    """38"""
    with controller.stream(command="count", upto=5) as stream:
        next(stream)
    assert controller.status().state is State.IDLE


def test_job_ids_grow_by_one(controller: MGPUController) -> None:
    """40"""
    ids = []
    for _ in range(3):
        with controller.stream(command="nothing") as stream:
            ids.append(stream.job_id)
    assert ids == [ids[0], ids[0] + 1, ids[0] + 2]


def test_a_yielded_exception_is_a_value(controller: MGPUController) -> None:
    """42"""
    first, second = by_rank(controller.stream(command="exceptions_as_values"))[0]
    assert isinstance(first, RunnerError)
    assert isinstance(second, StopIteration)


def test_nothing_of_a_job_outlives_it_in_the_ranks(controller: MGPUController, world_size: int) -> None:
    """43"""
    piece = set_of_paths()
    controller.stream(command="remember", x=torch.ones(3), thing=piece).drain()
    assert list(controller.stream(command="is_forgotten")) == [True] * world_size


class PathSet(set[Path]):
    """A set that can be referred to weakly."""


def set_of_paths() -> PathSet:
    return PathSet({Path("/a")})


def test_a_refusal_by_some_is_told_apart(
    controller: MGPUController, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """61"""
    finished = [rank for rank in range(world_size) if rank != 1]
    text = rf"rank 1 raised ValueError: too large.*rank {', '.join(map(str, finished))} finished"
    with pytest.raises(AsymmetricRunnerError, match=text) as caught:
        list(controller.stream(command="refuse", kind="value", ranks=[1]))
    terminals = caught.value.terminals
    assert all(isinstance(terminals[rank], StopIteration) for rank in finished)
    assert isinstance(terminals[1], RunnerError)
    assert any(record.levelname == "ERROR" for record in caplog.records)
    assert len(list(controller.stream(command="echo"))) == world_size


def test_refusals_that_differ_are_marked(controller: MGPUController, world_size: int) -> None:
    """62"""
    with pytest.raises(SymmetricRunnerError, match="rank 0 dislikes it") as caught:
        list(controller.stream(command="refuse", kind="runner", differ=True))
    assert [str(error) for error in caught.value.errors] == [f"rank {rank} dislikes it" for rank in range(world_size)]
    assert not caught.value.identical


def test_a_refusal_that_cannot_be_rebuilt_is_told_in_text(controller: MGPUController, world_size: int) -> None:
    """68"""
    with pytest.raises(SymmetricRunnerError, match="width 7: use a multiple of 8") as caught:
        list(controller.stream(command="refuse_with_two_arguments"))
    assert [error.cause_type for error in caught.value.errors] == [TwoArgumentError.__name__] * world_size


def test_the_families_of_errors_are_apart() -> None:
    """60, 61"""
    families = (RunnerError, SymmetricRunnerError, AsymmetricRunnerError)
    assert all(family.__base__ is Exception for family in families)
    assert issubclass(ControllerBusyError, RuntimeError)


def test_items_with_paths_and_slots_come_back_equal(controller: MGPUController) -> None:
    """52"""
    first, second = controller.stream(command="piece", path=Path("/x/y"), picture=torch.arange(20_000))
    assert (first.index, first.path) == (3, Path("/x/y"))
    assert isinstance(first, Piece)
    ((picture, deep),) = second["nested"]
    assert torch.equal(picture, torch.arange(20_000))
    assert torch.equal(deep["deep"].picture, first.picture)


def test_a_job_stops_early_on_every_rank_alike(controller: MGPUController, world_size: int) -> None:
    """Cooperative stop: any thread asks, the runner finds out between two steps, all ranks at the same one."""
    stream = controller.stream(command="steps", upto=1_000_000)
    assert [next(stream), next(stream)] == [0, 1]
    asker = threading.Thread(target=stream.request_stop, args=("pod is leaving",))
    asker.start()
    asker.join()
    (stopped_at, reason), *others = values(stream)
    assert others == [(stopped_at, reason)] * (world_size - 1)
    assert stopped_at < 1_000_000
    assert reason == "pod is leaving"


def test_a_stop_does_not_reach_the_next_job(controller: MGPUController, world_size: int) -> None:
    """Cooperative stop."""
    stream = controller.stream(command="steps", upto=2)
    stream.request_stop("too late, perhaps")
    stream.drain()
    stream.request_stop("much too late")
    assert values(controller.stream(command="steps", upto=3)) == [(3, None)] * world_size


def test_hundreds_of_jobs_leave_no_trace(
    controller: MGPUController, world_size: int, descriptors: Callable[[], int]
) -> None:
    """91: a reduced form."""
    tensor = torch.ones(10_000)
    before = descriptors()
    for _ in range(300):
        ranks = [
            rank for rank, kwargs in controller.stream(command="echo", x=tensor) if torch.equal(kwargs["x"], tensor)
        ]
        assert sorted(ranks) == list(range(world_size))
    assert descriptors() == before


def test_status_tells_who_does_what(controller: MGPUController, world_size: int) -> None:
    """94, 95"""
    stream = controller.stream(command="count", upto=3)
    status = controller.status()
    assert (status.state, status.job_id) == (State.RUNNING, stream.job_id)
    stream.drain()
    status = controller.status()
    assert (status.state, status.job_id) == (State.IDLE, None)
    assert [(rank.rank, rank.phase) for rank in status.ranks] == [(rank, "ready") for rank in range(world_size)]
    assert all(rank.heard_s_ago < 60 and rank.pid > 0 for rank in status.ranks)
