"""What poisons a fleet. Each test spends a fleet of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.worker.mgpu.conftest import assert_gone, await_equal
from worker.mgpu import (
    ControllerDeadError,
    FatalFleetError,
    FleetDesyncError,
    JobTimeoutError,
    MGPUController,
    RankDiedError,
    RunnerFailedError,
    Stream,
)

Make = Callable[..., MGPUController]


def fatal_error_of(stream: Stream) -> FatalFleetError:
    with pytest.raises(FatalFleetError) as caught:
        for _ in stream:
            pass
    return caught.value


def assert_poisoned(controller: MGPUController, stream: Stream, error: BaseException, pids: list[int]) -> None:
    assert_gone(pids, within_s=0.5)
    assert not controller.is_alive
    stream.drain()  # the error was told
    with pytest.raises(ControllerDeadError) as dead:
        controller.start()
    assert dead.value.__cause__ is error
    began = time.monotonic()
    controller.shutdown()
    assert time.monotonic() - began < 0.1
    with pytest.raises(ControllerDeadError):
        controller.stream()


@pytest.mark.parametrize(
    ("how", "cause", "error_type"),
    [
        ("strange error", "StrangeFault", RunnerFailedError),
        ("system exit", "SystemExit", RunnerFailedError),
        ("kill", "SIGKILL", RankDiedError),
        ("segfault", "SIGSEGV", RankDiedError),
    ],
)
def test_the_fleet_ends_when_a_rank_fails_while_its_peers_are_in_a_collective(
    new_fleet: Make, fleet_size: int, how: str, cause: str, error_type: type[FatalFleetError]
) -> None:
    """64, 66, 67, 68, 70, 82: within a second; the first cause is told, not the peers' broken collective."""
    controller = new_fleet()
    stream = controller.stream(command="fail", ranks=[1], how=how)
    pids = [next(stream) for _ in range(fleet_size)]
    began = time.monotonic()
    error = fatal_error_of(stream)
    assert time.monotonic() - began < 1
    assert type(error) is error_type
    assert (error.rank, error.cause_type) == (1, cause)
    assert error.pid in pids
    assert f"rank 1 (pid {error.pid})" in str(error)
    if error_type is RunnerFailedError:
        assert "in fail" in error.remote_traceback
    if how == "segfault":
        assert any("Segmentation fault" in line for line in error.failures[0].log_tail)
    if how == "kill":
        assert "OOM killer" in str(error)
    assert_poisoned(controller, stream, error, pids)


def test_a_death_while_idle_is_noticed(new_fleet: Make, fleet_size: int) -> None:
    """71, 93: the error says where its log is, and shutdown() leaves that there."""
    controller = new_fleet()
    pid = controller.status().ranks[1].pid
    os.kill(pid, signal.SIGKILL)
    await_equal(lambda: controller.is_alive, False, within_s=0.5)
    with pytest.raises(ControllerDeadError) as dead:
        controller.stream(command="echo")
    assert "rank 1" in str(dead.value.__cause__)
    controller.shutdown()


def test_a_rank_that_is_terminated_has_died_and_what_ranks_have_started_ends_with_the_fleet(
    new_fleet: Make, fleet_size: int
) -> None:
    """70, 86, 88: whoever sent it the SIGTERM."""
    controller = new_fleet()
    pids = [rank.pid for rank in controller.status().ranks]
    stream = controller.stream(command="start_child")
    children_of_ranks = [next(stream) for _ in range(fleet_size)]
    os.kill(pids[0], signal.SIGTERM)
    error = fatal_error_of(stream)
    assert isinstance(error, RankDiedError)
    assert (error.rank, error.cause_type) == (0, "SIGTERM")
    assert_gone(pids, within_s=0.5)
    assert_gone(children_of_ranks, within_s=0.5)


def test_a_skipped_message_is_a_desync(new_fleet: Make, fleet_size: int) -> None:
    """76"""
    error = fatal_error_of(new_fleet().stream(command="skip_a_message"))
    assert isinstance(error, FleetDesyncError)
    assert "rank 1" in str(error)


def test_a_yield_that_finds_no_room_is_an_error_with_its_size(new_fleet: Make) -> None:
    """57: and no SIGBUS, no SIGXFSZ."""
    controller = new_fleet(num_gpus=1)
    error = fatal_error_of(controller.stream(command="yield_beyond_a_limit", limit_bytes=1 << 20, size_bytes=3 << 20))
    assert isinstance(error, RunnerFailedError)
    assert error.cause_type == "SegmentAllocationError"
    assert str(3 << 20) in str(error)


def test_a_death_is_noticed_while_items_keep_coming_and_what_came_before_it_is_delivered_first(
    new_fleet: Make, fleet_size: int
) -> None:
    """70, 72"""
    stream = new_fleet().stream(command="deliver_then_die_among_chatter", amount=500)
    began = time.monotonic()
    received = []
    with pytest.raises(RankDiedError):
        received.extend((stream.last_rank, item) for item in stream)
    assert time.monotonic() - began < 2
    # list.extend loses what it took when the iterator raises only in its own counting, not in the list.
    assert [item for rank, item in received if rank == 1] == list(range(500))


def test_a_returned_value_that_does_not_pickle_is_fatal_and_drain_lets_that_through_once(new_fleet: Make) -> None:
    """37, 64, 69: all ranks fail alike and all are listed."""
    stream = new_fleet().stream(command="return_unpicklable")
    with pytest.raises(RunnerFailedError, match="function does not pickle") as caught:
        stream.drain()
    assert len(caught.value.failures) == 2
    stream.drain()


def test_an_unexpected_exception_outweighs_a_refusal(new_fleet: Make) -> None:
    """65"""
    error = fatal_error_of(new_fleet().stream(command="refuse_or_fail"))
    assert error.cause_type == "KeyError"
    assert error.__notes__ == ["rank 0 refused: RunnerError: refused here"]


def test_a_job_timeout_ends_the_fleet_though_a_rank_is_stopped_and_nobody_iterates(
    new_fleet: Make, fleet_size: int
) -> None:
    """73, 74, 88, 94: a stopped process can be killed."""
    controller = new_fleet()
    pids = [rank.pid for rank in controller.status().ranks]
    os.kill(pids[1], signal.SIGSTOP)
    stream = controller.stream(command="hang", timeout=0.5)
    began = time.monotonic()
    await_equal(lambda: controller.is_alive, False, within_s=1)
    assert 0.3 < time.monotonic() - began < 0.8
    assert sorted(next(stream) for _ in range(fleet_size - 1)) == sorted(set(pids) - {pids[1]})
    error = fatal_error_of(stream)
    assert isinstance(error, JobTimeoutError)
    assert isinstance(error, TimeoutError)
    assert "0.5 s" in str(error)
    assert f"rank 1 (pid {pids[1]})" in str(error)
    assert_gone(pids, within_s=3)  # it was given the time to tell what it does
    assert_poisoned(controller, stream, error, pids)


def test_a_job_timeout_also_bounds_a_job_that_keeps_yielding(new_fleet: Make) -> None:
    """73"""
    controller = new_fleet(num_gpus=1)
    began = time.monotonic()
    error = fatal_error_of(controller.stream(command="count", upto=10**9, timeout=0.5))
    assert time.monotonic() - began < 3
    assert isinstance(error, JobTimeoutError)
