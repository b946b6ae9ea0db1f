"""Ends: asked for, forced, forgotten, and when the controller itself is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import eventually
from tests.worker.mgpu.conftest import assert_gone
from worker.mgpu import ControllerShutdownError, MGPUController, State

Make = Callable[..., MGPUController]
ROOT = Path(__file__).parents[3]


def pids_of(controller: MGPUController) -> list[int]:
    return [rank.pid for rank in controller.status().ranks]


def test_an_idle_fleet_leaves_at_once_and_may_start_again(new_fleet: Make) -> None:
    """78, 79, 82, 29, 40, 93"""
    controller = new_fleet()
    pids = pids_of(controller)
    logs = controller._supervisor.fleet.logs.folder
    assert logs.is_dir()
    first = controller.stream(command="nothing")
    first.drain()
    began = time.monotonic()
    controller.shutdown()
    assert time.monotonic() - began < 3
    assert_gone(pids, within_s=0)
    assert not logs.exists()
    began = time.monotonic()
    controller.shutdown()
    assert time.monotonic() - began < 0.01
    with pytest.raises(ControllerShutdownError, match="shut down"):
        controller.stream(command="nothing")
    controller.start()
    second = controller.stream(command="nothing")
    second.drain()
    assert second.job_id == first.job_id + 1


def test_a_graceful_shutdown_lets_the_job_finish(new_fleet: Make) -> None:
    """78"""
    controller = new_fleet()
    stream = controller.stream(command="count", upto=3)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(controller.shutdown).result()
    assert len(list(stream)) == 6


def test_a_forced_shutdown_wakes_the_reader(new_fleet: Make) -> None:
    """78, 80, 81: two other threads end the fleet under a reader; all three return."""
    controller = new_fleet()
    pids = pids_of(controller)
    stream = controller.stream(command="hang")
    assert sorted([next(stream), next(stream)]) == sorted(pids)
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
    assert controller.status().state is State.STOPPED


def test_a_graceful_shutdown_ends_early_when_a_rank_dies(new_fleet: Make) -> None:
    """81"""
    controller = new_fleet()
    stream = controller.stream(command="fail", ranks=[1], how="kill")
    began = time.monotonic()
    controller.shutdown(graceful_timeout=60)
    assert time.monotonic() - began < 3
    with pytest.raises((ControllerShutdownError, RuntimeError)):
        list(stream)


def test_the_context_manager_shuts_down(new_controller: Make) -> None:
    """83"""
    with new_controller() as controller:
        controller.start()
        pids = pids_of(controller)
    assert_gone(pids, within_s=0)


def test_what_ranks_print_reaches_the_log(new_controller: Make) -> None:
    """93"""
    lines: list[tuple[int, str]] = []
    controller = new_controller(logs_specs=lambda rank, line: lines.append((rank, line)))
    controller.start()
    controller.stream(command="say", text="hello").drain()
    controller.shutdown()
    assert {(0, "hello"), (1, "hello"), (0, "native hello"), (1, "native hello")} <= set(lines)


def test_log_files_stay_where_they_were_asked_for(new_controller: Make, tmp_path: Path) -> None:
    """93"""

    class Specs:
        root_log_dir = str(tmp_path / "logs")

    controller = new_controller(logs_specs=Specs(), num_gpus=1)
    controller.start()
    controller.stream(command="say", text="kept").drain()
    controller.shutdown()
    assert "kept" in (tmp_path / "logs" / "rank0.log").read_text()


def test_a_job_works_after_an_idle_time_beyond_the_collective_timeout(new_controller: Make) -> None:
    """90, 18"""
    controller = new_controller(collective_timeout=1)
    controller.start(timeout=60)
    assert threading.Event().wait(2.5) is False
    assert len(list(controller.stream(command="describe"))) == 2


# --- a controller in a process of its own ---

SCRIPT = """
import os, signal, sys, threading, time
from worker.mgpu import MGPUController, MGPURunner
from tests.worker.mgpu.runners import CommandRunner

class Item:
    pass

class OwnRunner(MGPURunner):
    def __call__(self, *, item):
        assert type(item) is Item
        yield item

def fleet(runner_cls=CommandRunner):
    controller = MGPUController(runner_cls, num_gpus=2, backend="gloo")
    controller.start(timeout=60)
    print(*[rank.pid for rank in controller.status().ranks], flush=True)
    return controller
"""


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(body: str) -> subprocess.Popen[str]:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT + body)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([sys.executable, path], stdout=pipe, stderr=pipe, text=True, env=environment))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def read_pids(script: subprocess.Popen[str]) -> list[int]:
    assert script.stdout is not None
    line = script.stdout.readline()
    assert line, script.stderr.read()
    return [int(pid) for pid in line.split()]


def test_a_runner_in_a_script_works_and_the_script_ends_without_shutdown(
    run_script: Callable[[str], subprocess.Popen[str]],
) -> None:
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


def test_a_script_without_a_main_guard_gets_a_clear_error(
    run_script: Callable[[str], subprocess.Popen[str]],
) -> None:
    """23"""
    script = run_script("fleet()")
    _, errors = script.communicate(timeout=60)
    assert script.returncode == 1
    assert "__main__" in errors.rpartition("StartError")[2]


@pytest.mark.parametrize("command", ["hang", "hold_the_gil"])
def test_ranks_die_with_a_controller_that_is_killed(
    run_script: Callable[[str], subprocess.Popen[str]], command: str
) -> None:
    """85"""
    script = run_script(
        f"""
if __name__ == "__main__":
    stream = fleet().stream(command={command!r})
    next(stream), next(stream)
    print("running", flush=True)
    next(stream)
"""
    )
    pids = read_pids(script)
    assert script.stdout is not None
    assert script.stdout.readline() == "running\n"
    script.kill()
    assert_gone(pids, within_s=2)


def test_an_interrupt_reaches_only_the_controller(
    run_script: Callable[[str], subprocess.Popen[str]],
) -> None:
    """87, 25: Ctrl-C comes out of next(), and the shutdown after it works."""
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


def test_an_interrupted_start_leaves_nothing(new_controller: Make) -> None:
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
