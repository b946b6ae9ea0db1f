"""What goes wrong beside the job: results that do not open, floods of output, full disks, a caller that has left."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.worker.mgpu.conftest import is_running
from tests.worker.mgpu.runners import CommandRunner
from tests.worker.mgpu.scripts import RunScript, read_pids
from worker.mgpu import (
    AsymmetricRunnerError,
    JobTimeoutError,
    MGPUController,
    RunnerError,
    StartTimeoutError,
    State,
    SymmetricRunnerError,
    UnreadableResultError,
)

Make = Callable[..., MGPUController]


class Unreadable(Exception):
    """Pickles, but does not unpickle: its constructor wants more than its args."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("text")


class AwkwardRunner(CommandRunner):
    def setup(self, *, breaks_teardown: bool = False, ballast: bytes = b"", **kwargs: Any) -> None:  # type: ignore[override]
        super().setup(**kwargs)
        self.breaks_teardown = breaks_teardown

    def teardown(self) -> None:
        if self.breaks_teardown:
            raise KeyError("teardown broke")

    def yield_unreadable(self) -> Iterator[Any]:
        yield Unreadable(1, 2)
        yield "readable"
        return Unreadable(1, 2)

    def flood(self) -> Iterator[Any]:
        yield None
        while self.rank == 0:
            os.write(1, b"x" * (1 << 16))
        threading.Event().wait()

    def refuse_or_ask(self) -> Iterator[Any]:
        """Rank 0 asks once more than the others before all refuse, or the others do alone."""
        if self.rank > 0:
            raise RunnerError("not here")
        self.stop_requested()
        yield "asked"


@pytest.fixture(scope="module")
def awkward() -> Iterator[MGPUController]:
    with MGPUController(AwkwardRunner, num_gpus=2, backend="gloo") as controller:
        controller.start(timeout=60)
        yield controller


def test_an_element_that_cannot_be_rebuilt_is_told_and_the_next_is_read(awkward: MGPUController) -> None:
    """20, 37, 69: the controller is free afterwards, whoever reads or drains."""
    stream = awkward.stream(command="yield_unreadable")
    seen: list[object] = []
    while len(seen) < 4:
        try:
            seen.append(next(stream))
        except UnreadableResultError as error:
            seen.append(str(error).partition(": ")[2].partition(":")[0])
    assert sorted(map(str, seen)) == ["TypeError"] * 2 + ["readable"] * 2
    with pytest.raises(UnreadableResultError):  # the returned values
        next(stream)
    assert awkward.status().state is State.IDLE
    awkward.stream(command="yield_unreadable").drain()
    assert awkward.status().state is State.IDLE


def test_a_stop_is_seen_alike_after_a_job_in_which_ranks_asked_differently(awkward: MGPUController) -> None:
    """61 and cooperative stop: the words of the refused job are not taken for those of the next."""
    with pytest.raises(AsymmetricRunnerError):
        list(awkward.stream(command="refuse_or_ask"))
    stream = awkward.stream(command="steps", upto=1_000_000)
    next(stream)
    stream.request_stop("now")
    ended = []

    def read() -> Iterator[None]:
        ended.extend((yield from stream))

    for _ in read():
        pass
    assert ended[0] == ended[1]
    assert ended[0][1] == "now"


def test_a_timeout_may_be_as_long_as_one_likes(awkward: MGPUController) -> None:
    """73, 74"""
    for timeout in (float("inf"), 40 * 86_400):
        assert len(list(awkward.stream(command="echo", timeout=timeout))) == 2


def test_a_rank_that_never_stops_printing_does_not_keep_its_deadline_waiting(new_fleet: Make) -> None:
    """73, 93"""
    controller = new_fleet(AwkwardRunner, logs_specs=lambda rank, line: None)
    began = time.monotonic()
    with pytest.raises(JobTimeoutError):
        list(controller.stream(command="flood", timeout=1))
    assert time.monotonic() - began < 1.5


def test_neither_a_full_disk_nor_ranks_that_asked_differently_keep_a_fleet_from_leaving_in_order(
    new_fleet: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """61, 78, 93: the disk's end is that of the log alone, and what the ranks print still reaches the caller."""
    lines: list[str] = []
    monkeypatch.setattr("worker.mgpu.logs._open_for_writing", lambda path: open("/dev/full", "wb", buffering=0))  # noqa: PTH123, SIM115
    controller = new_fleet(AwkwardRunner, logs_specs=lambda rank, line: lines.append(line))
    controller.stream(command="say", text="hello").drain()
    with pytest.raises(AsymmetricRunnerError):
        list(controller.stream(command="refuse_or_ask"))
    controller.shutdown()
    assert lines.count("hello") == 2
    assert not [record for record in caplog.records if "shut down" in record.message]
    assert any("No space left on device" in record.message for record in caplog.records)


def test_a_teardown_that_breaks_is_told(new_controller: Make, caplog: pytest.LogCaptureFixture) -> None:
    """78"""
    controller = new_controller(AwkwardRunner, num_gpus=1)
    controller.start(timeout=60, breaks_teardown=True)
    controller.shutdown()
    told = [record for record in caplog.records if "teardown broke" in record.message]
    assert {record.levelno for record in told} == {logging.WARNING}


def test_leaving_does_not_wait_for_a_job_that_waits_for_its_reader(new_controller: Make) -> None:
    """39, 81, 83: who leaves the `with` will not read it."""
    began = time.monotonic()
    with new_controller(AwkwardRunner, num_gpus=1, max_buffered_bytes=1) as controller:
        controller.start(timeout=60)
        stream = controller.stream(command="count", upto=10)
        next(stream)
        began = time.monotonic()
    assert time.monotonic() - began < 5


def test_a_start_keeps_its_deadline_with_much_to_send(run_script: RunScript) -> None:
    """16: while the children still import a slow main module."""
    script = run_script(
        """
if __name__ == "__mp_main__":
    threading.Event().wait()
if __name__ == "__main__":
    controller = MGPUController(CommandRunner, num_gpus=1, backend="gloo")
    try:
        controller.start(timeout=1, ballast=bytes(1 << 20))
    except TimeoutError as error:
        print(type(error).__name__, flush=True)
"""
    )
    output, errors = script.communicate(timeout=20)
    assert output == f"{StartTimeoutError.__name__}\n", errors


def test_a_program_that_takes_no_notice_of_its_children_ends_its_fleet(run_script: RunScript) -> None:
    """70, 78: with SIGCHLD ignored the kernel reaps the ranks before anybody learns their exit code."""
    script = run_script(
        """
if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    controller = fleet()
    print(len(list(controller.stream(command="count", upto=1))), flush=True)
    controller.shutdown()
    print(controller.status().state, flush=True)
"""
    )
    pids = read_pids(script)
    output, errors = script.communicate(timeout=30)
    assert output == "2\nstopped\n", errors
    assert not any(is_running(pid) for pid in pids)


def test_a_forked_child_of_multiprocessing_with_a_fleet_of_its_own_ends(run_script: RunScript) -> None:
    """84: it ends without atexit."""
    script = run_script(
        """
import multiprocessing

def own_fleet():
    global controller
    controller = fleet(num_gpus=1)

if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=own_fleet)
    child.start()
    child.join(30)
    print("exit code", child.exitcode, flush=True)
"""
    )
    read_pids(script)
    output, errors = script.communicate(timeout=40)
    assert output == "exit code 0\n", errors


def test_refusals_at_different_places_leave_no_word_behind(awkward: MGPUController) -> None:
    """60: and a tensor goes through as before."""
    with pytest.raises((SymmetricRunnerError, AsymmetricRunnerError)):
        list(awkward.stream(command="refuse_or_ask"))
    assert len(list(awkward.stream(command="echo", x=torch.ones(3)))) == 2


def test_a_folder_for_logs_that_cannot_be_made_is_told(new_controller: Make) -> None:
    """93: before any process, and the controller may be tried again."""
    controller = new_controller(logs_specs=SimpleNamespace(root_log_dir="/proc/nowhere"), num_gpus=1)
    for _ in range(2):
        with pytest.raises(OSError, match="nowhere"):
            controller.start()
    assert controller.status().state is State.NEW


def test_a_second_shutdown_does_not_prolong_the_first(awkward: MGPUController) -> None:
    """79: the end of the fleet that the tests above share."""
    assert awkward.is_alive
    stream = awkward.stream(command="hang")
    assert next(stream)
    began = time.monotonic()
    first = threading.Thread(target=awkward.shutdown, kwargs={"graceful_timeout": 0.5})
    first.start()
    awkward.shutdown(graceful_timeout=30)
    first.join()
    assert time.monotonic() - began < 5
