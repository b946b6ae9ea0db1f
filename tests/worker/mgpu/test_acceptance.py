"""Ten cases from public reports about other servers; with --full each with two, four and eight ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import eventually
from tests.worker.mgpu.conftest import assert_gone, is_running
from tests.worker.mgpu.runners import CommandRunner, SetupRunner
from tests.worker.mgpu.scripts import RunScript, read_line, read_pids
from worker.mgpu import (
    ControllerDeadError,
    MGPUController,
    Phase,
    RankDiedError,
    RunnerError,
    RunnerFailedError,
    StartError,
    State,
    Stream,
    SymmetricRunnerError,
)

Make = Callable[..., MGPUController]

ANSWER_LIMIT_S = 10  # eight ranks on two cores


def ranks_that_answer(controller: MGPUController) -> list[int]:
    return sorted(rank for rank, _ in controller.stream(command="echo", timeout=ANSWER_LIMIT_S))


def first_of_each(stream: Stream, world_size: int) -> list[Any]:
    """What each rank yielded first, in rank order."""
    first: dict[int, Any] = {}
    for item in stream:
        first.setdefault(stream.last_rank, item)
        if len(first) == world_size:
            break
    return [first[rank] for rank in range(world_size)]


# --- the controller is killed ---


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ranks" not in metafunc.fixturenames:
        return
    cases = {
        "2-asleep-or-in-C": (2, ["hang", "hold_the_gil"]),
        "2-in-a-collective": (2, ["diverge"]),
        "4-mixed": (4, ["hang", "hold_the_gil", "diverge"]),
    }
    if metafunc.config.getoption("full"):
        cases["8-mixed"] = (8, ["hang", "hold_the_gil", "diverge"])
    metafunc.parametrize(("ranks", "commands"), cases.values(), ids=cases)


def test_no_rank_outlives_a_controller_that_is_killed(run_script: RunScript, ranks: int, commands: list[str]) -> None:
    """85: vllm-project/vllm#55510, sgl-project/sglang#30110; whatever the ranks are doing."""
    script = run_script(
        f"""
if __name__ == "__main__":
    stream = fleet(num_gpus={ranks}).stream(command="differ", commands={commands!r})
    for _ in range({ranks}):
        next(stream)
    print("running", flush=True)
    next(stream)
"""
    )
    pids = read_pids(script)
    assert read_line(script) == "running"
    script.kill()
    assert_gone(pids, within_s=0.5)


@pytest.mark.parametrize("phase", [Phase.SPAWNED, Phase.SETUP], ids=["importing", "in-setup"])
def test_no_rank_outlives_a_controller_that_is_killed_while_it_starts(run_script: RunScript, phase: Phase) -> None:
    """85: vllm-project/vllm#55510."""
    script = run_script(
        f"""
if __name__ == "__main__":
    controller = MGPUController(SetupRunner, num_gpus=2, backend="gloo")
    waits = {{"timeout": 60, "faults": {{0: "wait", 1: "wait"}}}}
    threading.Thread(target=controller.start, kwargs=waits, daemon=True).start()
    eventually(lambda: [rank.phase for rank in controller.status().ranks] == [{phase.value!r}] * 2)
    tell_pids(controller)
    signal.pause()
"""
    )
    pids = read_pids(script)
    script.kill()
    assert_gone(pids, within_s=0.5)


# --- starting ---


def test_a_fleet_outlives_the_thread_that_started_it(controller: MGPUController, world_size: int) -> None:
    """24: Tencent-Hunyuan/UniRL#276; the kernel's parent-death signal goes by threads. The fixture's is gone."""
    assert ranks_that_answer(controller) == list(range(world_size))


def test_a_rank_that_is_killed_during_start_fails_it_while_rank_0_waits(new_controller: Make, fleet_size: int) -> None:
    """17: sgl-project/sglang#20287; no rank is waited for before the others."""
    controller = new_controller(SetupRunner)
    victim = fleet_size - 1
    with ThreadPoolExecutor(1) as starter:
        started = starter.submit(controller.start, timeout=60, faults=dict.fromkeys(range(fleet_size), "wait"))
        eventually(lambda: phases_of(controller) == [Phase.SETUP] * fleet_size, timeout_s=30)
        pids = [rank.pid for rank in controller.status().ranks]
        os.kill(pids[victim], signal.SIGKILL)
        error = started.exception(timeout=1)
    assert isinstance(error, StartError)
    assert (error.rank, error.pid, error.cause_type) == (victim, pids[victim], "SIGKILL")
    assert_gone(pids, within_s=0)


def phases_of(controller: MGPUController) -> list[Phase]:
    return [rank.phase for rank in controller.status().ranks]


# --- a fleet that goes on ---


@pytest.mark.parametrize("kind", ["runner", "value"])
def test_a_fleet_goes_on_after_all_ranks_refused_two_jobs(
    controller: MGPUController, world_size: int, kind: str
) -> None:
    """60, 63, 73: vllm-project/vllm-omni#6964; the second refusal comes as soon as the first."""
    for _ in range(2):
        stream = controller.stream(command="refuse", kind=kind, timeout=ANSWER_LIMIT_S)
        assert [next(stream) for _ in range(world_size)] == ["before"] * world_size
        with pytest.raises(SymmetricRunnerError, match=r"^too large$") as caught:
            next(stream)
        errors = caught.value.errors
        assert [error.rank for error in errors] == list(range(world_size))
        assert all(isinstance(error, RunnerError) for error in errors)
        assert {error.cause_type for error in errors} == {{"runner": "RunnerError", "value": "ValueError"}[kind]}
        assert all("in refuse" in error.remote_traceback for error in errors)
        assert caught.value.identical
    assert ranks_that_answer(controller) == list(range(world_size))


@pytest.mark.parametrize(
    "unpicklable", [lambda: 1, threading.Lock(), (number for number in ())], ids=["lambda", "lock", "generator"]
)
def test_an_unpicklable_keyword_is_refused_in_the_caller(
    controller: MGPUController, world_size: int, unpicklable: object
) -> None:
    """31: python/cpython#84376; a put that seems to succeed and drops its item."""
    with pytest.raises(Exception, match="pickle"):  # each type raises another
        controller.stream(command="echo", bad=unpicklable)
    assert controller.status().state is State.IDLE
    assert ranks_that_answer(controller) == list(range(world_size))


# --- a fleet that ends ---


COLLECTIVE_TIMEOUT_S = 2


class PunctualRunner(CommandRunner):
    """Its ranks are ready for their first collective at the same moment, however few cores they start on."""

    def __init__(self) -> None:
        meeting_point = Path(os.environ["MEETING_POINT"])
        (meeting_point / os.environ["RANK"]).touch()
        eventually(lambda: len(list(meeting_point.iterdir())) == int(os.environ["WORLD_SIZE"]), timeout_s=30)


@dataclass(frozen=True)
class Life:
    """Of a fleet that was idle, worked, and lost its last rank, by an exit with code 0, while the others were deaf."""

    controller: MGPUController
    idle_s: float
    used_ns: list[int]  # of a core by each rank, in that time
    answers: list[int]  # of the ranks, after that time
    stream: Stream
    reader: Executor  # its only thread owns the stream, and was blocked in it
    error: BaseException | None
    told_after_s: float
    gone_after_s: float  # though nobody called shutdown()


def used_ns(pid: int) -> int:
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


@pytest.fixture(scope="module")
def life(fleet_size: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """The cases below look at one fleet: to start one is what takes the time."""
    logs = SimpleNamespace(root_log_dir=str(tmp_path_factory.mktemp("logs")))
    controller = MGPUController(
        PunctualRunner, num_gpus=fleet_size, backend="gloo", logs_specs=logs, collective_timeout=COLLECTIVE_TIMEOUT_S
    )
    with ThreadPoolExecutor(1) as reader, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEETING_POINT", str(tmp_path_factory.mktemp("meeting")))
        try:
            controller.start(timeout=60)
            controller.stream(command="nothing").drain()
            pids = [rank.pid for rank in controller.status().ranks]
            began, before = time.monotonic(), [used_ns(pid) for pid in pids]
            threading.Event().wait(1.25 * COLLECTIVE_TIMEOUT_S)
            used = [used_ns(pid) - ns for pid, ns in zip(pids, before, strict=True)]
            idle_s = time.monotonic() - began
            answers = list(controller.stream(command="sum_up", timeout=ANSWER_LIMIT_S))
            stream = reader.submit(controller.stream, command="leave_the_deaf").result()
            pids = reader.submit(first_of_each, stream, fleet_size).result(timeout=ANSWER_LIMIT_S)
            blocked = reader.submit(next, stream)
            fell_at = time.monotonic()
            os.kill(pids[-1], signal.SIGTERM)
            error = blocked.exception(timeout=ANSWER_LIMIT_S)
            told_after_s = time.monotonic() - fell_at
            eventually(lambda: not any(is_running(pid) for pid in pids))
            gone_after_s = time.monotonic() - fell_at
            eventually(lambda: not controller.status().ranks)  # reaped, before another test counts processes
            yield Life(controller, idle_s, used, answers, stream, reader, error, told_after_s, gone_after_s)
        finally:
            controller.shutdown(graceful_timeout=0)


def test_a_fleet_works_after_more_idle_time_than_a_collective_may_take(life: Life, fleet_size: int) -> None:
    """18, 90: vipshop/cache-dit#531; nothing is pending while a fleet is idle."""
    assert life.idle_s > COLLECTIVE_TIMEOUT_S
    assert life.answers == [sum(range(fleet_size))] * fleet_size


def test_an_idle_rank_takes_less_than_a_thousandth_of_a_core(life: Life) -> None:
    """90: between two jobs."""
    assert max(life.used_ns) < life.idle_s * 1e9 / 1000


def test_an_exit_with_code_0_is_a_death(life: Life, fleet_size: int) -> None:
    """70: pytorch/pytorch#116224."""
    assert isinstance(life.error, RankDiedError)
    assert (life.error.rank, life.error.cause_type) == (fleet_size - 1, "exit code 0")
    assert life.told_after_s < 0.5
    assert not life.controller.is_alive


def test_every_waiter_hears_of_a_death_now_and_ever_after(life: Life) -> None:
    """29, 35, 64, 70: NVIDIA/TensorRT-LLM#15816; nobody waits for a result that cannot come."""
    assert life.error is not None
    for _ in range(2):
        assert life.reader.submit(next, life.stream).exception(timeout=0.5) is life.error
        with pytest.raises(ControllerDeadError) as dead:
            life.controller.stream(command="echo")
        assert dead.value.__cause__ is life.error


def test_ranks_that_ignore_sigterm_are_gone_soon_after_a_death(life: Life) -> None:
    """78: vllm-project/vllm-omni#7126."""
    assert life.gone_after_s < 3


def test_ranks_that_ignore_sigterm_are_gone_soon_after_a_shutdown(
    spent_controller: MGPUController, world_size: int
) -> None:
    """78: vllm-project/vllm-omni#7126."""
    pids = first_of_each(spent_controller.stream(command="ignore_sigterm"), world_size)
    began = time.monotonic()
    spent_controller.shutdown(graceful_timeout=0)
    assert time.monotonic() - began < 3
    assert_gone(pids, within_s=0)


def test_an_unpicklable_yield_is_reported(new_fleet: Make, fleet_size: int) -> None:
    """69: python/cpython#84376; with its rank and its type, while the peers wait in a collective."""
    stream = new_fleet().stream(command="yield_unpicklable", ranks=[fleet_size - 1])
    assert first_of_each(stream, fleet_size) == [1] * fleet_size
    began = time.monotonic()
    with pytest.raises(RunnerFailedError, match="lock does not pickle") as caught:
        next(stream)
    assert time.monotonic() - began < 0.5
    assert caught.value.rank == fleet_size - 1
