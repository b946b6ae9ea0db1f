"""Ends: asked for, forced, forgotten, and when the controller itself is gone."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import worker.mgpu.fleet
from tests.waiting import eventually
from tests.worker.mgpu.conftest import assert_gone, is_running
from tests.worker.mgpu.runners import CommandRunner, SetupRunner
from tests.worker.mgpu.scripts import RunScript, read_pids
from worker.mgpu import ControllerShutdownError, MGPUController, Phase, State
from worker.mgpu.rank_process import RankProcess

Make = Callable[..., MGPUController]


def pids_of(controller: MGPUController) -> list[int]:
    return [rank.pid for rank in controller.status().ranks]


def test_an_idle_fleet_leaves_at_once_and_may_start_again_and_a_busy_one_finishes_its_job(
    new_controller: Make, fleet_size: int, tmp_path: Path
) -> None:
    """29, 40, 78, 79, 82, 83, 91, 92, 93

    What ranks have printed has reached the log, a clean end leaves no folder, and a thread that a runner left behind
    does not keep the fleet.
    """
    lines: list[tuple[int, str]] = []
    with new_controller(logs_specs=lambda rank, line: lines.append((rank, line))) as controller:
        controller.start()
        pids = pids_of(controller)
        assert len(pids) == fleet_size
        (logs,) = tmp_path.glob("mgpu-*")
        first = controller.stream(command="say", text="hello")
        first.drain()
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert_gone(pids, within_s=0)
    assert not logs.exists()
    assert {(rank, text) for rank in range(fleet_size) for text in ("hello", "native hello")} <= set(lines)
    began = time.monotonic()
    controller.shutdown()
    assert time.monotonic() - began < 0.01
    with pytest.raises(ControllerShutdownError, match="shut down"):
        controller.stream(command="nothing")
    controller.start()
    pids = pids_of(controller)
    assert worker.mgpu.rank.LEAVE_DEADLINE_S <= 5
    second = controller.stream(command="leave_thread", deadline_s=0.5)
    assert len(list(second)) == fleet_size
    assert second.job_id == first.job_id + 1
    stream = controller.stream(command="count", upto=3)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(controller.shutdown).result()
    assert 0.5 < time.monotonic() - began < 2
    assert_gone(pids, within_s=0)
    assert len(list(stream)) == 3 * fleet_size


def test_a_forced_shutdown_wakes_the_reader_and_ends_what_ranks_have_started(new_fleet: Make, fleet_size: int) -> None:
    """78, 80, 81, 86: two other threads end the fleet under a reader; all three return."""
    controller = new_fleet()
    pids = pids_of(controller)
    stream = controller.stream(command="start_child")
    children_of_ranks = [next(stream) for _ in range(fleet_size)]
    assert all(is_running(pid) for pid in children_of_ranks)
    stoppers = [threading.Thread(target=controller.shutdown, kwargs={"graceful_timeout": grace}) for grace in (60, 0)]
    for stopper in stoppers:
        stopper.start()
    began = time.monotonic()
    with pytest.raises(ControllerShutdownError):
        next(stream)
    assert time.monotonic() - began < 3
    for stopper in stoppers:
        stopper.join()
    assert_gone(pids, within_s=0)
    assert_gone(children_of_ranks, within_s=0.5)
    assert controller.status().state is State.STOPPED


def test_a_graceful_shutdown_ends_early_when_a_rank_dies(new_fleet: Make, fleet_size: int) -> None:
    """81"""
    controller = new_fleet()
    stream = controller.stream(command="fail", ranks=[1], how="kill")
    began = time.monotonic()
    controller.shutdown(graceful_timeout=60)
    assert time.monotonic() - began < 3
    with pytest.raises((ControllerShutdownError, RuntimeError)):
        list(stream)


def test_processes_that_survive_sigkill_are_told_and_do_not_keep_the_caller(
    new_fleet: Make, fleet_size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """78: as if they were in an uninterruptible call into a driver."""
    controller = new_fleet()
    stream = controller.stream(command="hold_the_gil")
    pids = [next(stream) for _ in range(fleet_size)]
    with monkeypatch.context() as patch:
        patch.setattr(RankProcess, "signal", lambda self, number: None)
        patch.setattr(worker.mgpu.fleet, "TERM_GRACE_S", 0.1)
        patch.setattr(worker.mgpu.fleet, "REAP_LIMIT_S", 0.1)
        began = time.monotonic()
        controller.shutdown(graceful_timeout=0)
    assert time.monotonic() - began < 1
    (record,) = [record for record in caplog.records if "survived SIGKILL" in record.message]
    assert all(str(pid) in record.message for pid in pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not {process.pid for process in multiprocessing.active_children()} & set(pids))


# --- a controller in a process of its own ---


def test_a_runner_in_a_script_works_and_the_script_ends_without_shutdown(run_script: RunScript) -> None:
    """19, 20, 84"""
    script = run_script(
        """
if __name__ == "__main__":
    controller = fleet(OwnRunner)
    print([type(item) is Item for item in controller.stream(item=Item())], flush=True)
"""
    )
    pids = read_pids(script)
    began = time.monotonic()
    output, errors = script.communicate(timeout=30)
    assert "[True, True]" in output, errors
    assert time.monotonic() - began < 10
    assert script.returncode == 0, errors
    assert "leaked" not in errors
    assert_gone(pids, within_s=0)


def test_a_script_without_a_main_guard_gets_a_clear_error(run_script: RunScript) -> None:
    """23"""
    script = run_script("fleet(num_gpus=1)")
    _, errors = script.communicate(timeout=60)
    assert script.returncode == 1
    assert "__main__" in errors.rpartition("StartError")[2]


def test_an_interrupt_reaches_only_the_controller(run_script: RunScript) -> None:
    """25, 87: Ctrl-C comes out of next(), and the shutdown after it works."""
    script = run_script(
        """
if __name__ == "__main__":
    controller = fleet()
    stream = controller.stream(command="hang")
    pids = [next(stream), next(stream)]
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        next(stream)
    except KeyboardInterrupt:
        print("interrupted", controller.is_alive, flush=True)
    finally:
        controller.shutdown(graceful_timeout=0)
"""
    )
    pids = read_pids(script)
    output, errors = script.communicate(timeout=30)
    assert output == "interrupted True\n", errors
    assert script.returncode == 0, errors
    assert_gone(pids, within_s=0)


def test_an_interrupt_that_the_system_gives_to_another_thread_ends_a_start(run_script: RunScript) -> None:
    """25: Python's handler then waits for the main thread, which waits for the ranks."""
    script = run_script(
        """
def interrupt(controller):
    eventually(lambda: [rank.phase for rank in controller.status().ranks] == ["setup"], timeout_s=60)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

if __name__ == "__main__":
    controller = MGPUController(SetupRunner, num_gpus=1, backend="gloo")
    threading.Thread(target=interrupt, args=(controller,)).start()
    try:
        controller.start(timeout=600, faults={0: "wait"})
    except KeyboardInterrupt:
        print("interrupted", controller.is_alive, flush=True)
"""
    )
    output, errors = script.communicate(timeout=30)
    assert output == "interrupted False\n", errors


def test_an_interrupted_start_leaves_nothing(new_controller: Make, fleet_size: int) -> None:
    """25"""
    controller = new_controller()

    def interrupt() -> None:
        eventually(lambda: controller.status().ranks)
        signal.raise_signal(signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        controller.start(timeout=60)
    interrupter.join()
    assert controller.status().state is State.STOPPED


def test_a_dropped_controller_ends_its_fleet(new_controller: Make) -> None:
    """84: but not while somebody holds a stream of it."""
    controller = MGPUController(CommandRunner, num_gpus=1, backend="gloo")
    controller.start(timeout=60)
    pids = pids_of(controller)
    stream = controller.stream(command="count", upto=2)
    del controller
    gc.collect()
    assert len(list(stream)) == 2
    assert is_running(pids[0])
    del stream
    gc.collect()
    assert_gone(pids, within_s=0)


def test_a_shutdown_during_the_start_ends_it(new_controller: Make) -> None:
    """78, 95: the controller is not alive before start() has returned, and start() says why it never does."""
    controller = new_controller(SetupRunner)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(controller.start, timeout=60, faults={1: "wait"})
        eventually(lambda: [rank.phase for rank in controller.status().ranks] == [Phase.SETUP] * 2)
        assert controller.status().state is State.STARTING
        assert not controller.is_alive
        controller.shutdown()
        with pytest.raises(ControllerShutdownError):
            starting.result()
    assert controller.status().state is State.STOPPED


def test_a_ctrl_c_while_ranks_start_is_the_callers_alone(run_script: RunScript) -> None:
    """25, 87: the terminal sends it to the whole process group, which the ranks have not left yet."""
    script = run_script(
        """
if __name__ == "__main__":
    os.setpgid(0, 0)
    controller = MGPUController(CommandRunner, num_gpus=2, backend="gloo")
    def interrupt():
        eventually(lambda: len(controller.status().ranks) == 2)
        os.killpg(0, signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        controller.start(timeout=60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    )
    output, errors = script.communicate(timeout=30)
    assert output == "interrupted\n", errors
    assert errors == ""
