"""What an error says about a fleet whose ranks hung or diverged, and where that stays."""

from __future__ import annotations

import fcntl
import os
import pickle
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.mgpu.conftest import is_running
from tests.worker.mgpu.runners import CommandRunner, SetupRunner
from worker.mgpu import (
    ControllerDeadError,
    FatalFleetError,
    FleetDesyncError,
    JobTimeoutError,
    MGPUController,
    RankDiedError,
    RankOutOfMemoryError,
    RunnerFailedError,
    StartTimeoutError,
)
from worker.mgpu.fleet import Fleet
from worker.mgpu.logs import KEPT_FOLDERS, FleetLogs

Make = Callable[..., MGPUController]


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """So that other fleets of this machine are not counted."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def fatal_error(run: Callable[[], Any]) -> FatalFleetError:
    with pytest.raises(FatalFleetError) as caught:
        run()
    return caught.value


def stacks_of(error: FatalFleetError) -> dict[str, str]:
    return {path.name: path.read_text() for path in error.evidence if path.suffix == ".stacks"}


def test_a_hang_is_told_with_the_stacks_of_every_rank(new_fleet: Make) -> None:
    """75, 73: also of native code that holds the GIL, and in time."""
    controller = new_fleet()
    list(controller.stream(command="nothing"))  # a first job imports things, which takes a busy machine long
    began = time.monotonic()
    hangs = {"command": "differ", "commands": ["hang", "hold_the_gil"]}
    error = fatal_error(lambda: list(controller.stream(**hangs, timeout=0.5)))
    assert time.monotonic() - began < 0.5 + 0.3
    assert isinstance(error, JobTimeoutError)
    stacks = stacks_of(error)
    assert sorted(stacks) == ["rank0.stacks", "rank1.stacks"]
    assert "in hang" in stacks["rank0.stacks"]
    assert "in hold_the_gil" in stacks["rank1.stacks"]
    assert f"evidence in {error.evidence[0].parent}" in str(error)
    controller.shutdown()
    assert all(path.exists() for path in error.evidence)


def test_a_refusal_while_peers_wait_in_a_collective_is_a_desync_told_with_their_stacks_and_last_collectives(
    new_fleet: Make, fleet_size: int
) -> None:
    """63, 75: torch's flight recorder; the barrier that only rank 1 did not come to is the others' last entry there."""
    controller = new_fleet(asymmetry_grace=0.5)
    began = time.monotonic()
    error = fatal_error(lambda: list(controller.stream(command="refuse_and_wait")))
    assert 0.4 < time.monotonic() - began < 2
    assert isinstance(error, FleetDesyncError)
    assert "rank 1" in str(error).partition("refused")[0]
    silent = str(error).partition("refused")[2]
    assert [f"rank {rank} (" in silent for rank in range(fleet_size)] == [rank != 1 for rank in range(fleet_size)]
    assert "in refuse_and_wait" in stacks_of(error)["rank0.stacks"]
    controller.shutdown()
    counts = [len(recorded_in(error.evidence[0].parent / f"collectives-rank{rank}")) for rank in (0, 1)]
    assert counts[0] == counts[1] + 1


def recorded_in(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = pickle.loads(path.read_bytes())["entries"]  # what our own rank wrote
    return entries


def test_a_start_that_hangs_is_told_with_the_stacks_and_names_the_missing(new_controller: Make) -> None:
    """16, 18, 75: the rank that waits in its setup, and no process is left when start() raises."""
    controller = new_controller(SetupRunner)
    began = time.monotonic()
    error = fatal_error(lambda: controller.start(timeout=5, faults={1: "wait"}))
    assert time.monotonic() - began < 7
    assert isinstance(error, StartTimeoutError)
    assert isinstance(error, TimeoutError)
    assert re.search(r"of 2 ranks were ready after 5(\.0)? s; missing: .*rank 1 \(pid \d+, phase", str(error))
    assert "in setup" in stacks_of(error)["rank1.stacks"]


def test_the_error_comes_before_the_end_of_the_processes(new_fleet: Make) -> None:
    """70: a GPU process takes its time to die; its caller must not wait for that. shutdown() does."""
    controller = new_fleet()
    pid = controller.status().ranks[1].pid
    stream = controller.stream(command="hang")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "kill", lambda self: None)  # as if the kernel took for ever
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert isinstance(fatal_error(lambda: list(stream)), RankDiedError)
        assert time.monotonic() - began < 1
        assert not controller.is_alive
        with pytest.raises(ControllerDeadError):
            controller.stream(command="hang")
        assert is_running(controller.status().ranks[0].pid)
    controller._supervisor.fleet.kill()
    controller.shutdown()
    assert controller.status().ranks == ()


class MemoryRunner(CommandRunner):
    def exhaust(self, kind: str) -> Iterator[Any]:
        yield None
        raise {"gpu": torch.OutOfMemoryError, "host": MemoryError}[kind]("wanted 4 TB")

    def refuse_to_exhaust(self) -> Iterator[Any]:
        try:
            yield from self.exhaust("gpu")
        except torch.OutOfMemoryError as error:
            raise ValueError("too large for this GPU") from error


@pytest.mark.parametrize(("kind", "name"), [("gpu", "OutOfMemoryError"), ("host", "MemoryError")])
def test_a_rank_without_memory_is_named_as_that_unless_its_runner_refuses_the_job(
    new_fleet: Make, kind: str, name: str
) -> None:
    """67"""
    controller = new_fleet(MemoryRunner, num_gpus=1)
    controller.stream(command="refuse_to_exhaust").drain()
    assert controller.is_alive
    error = fatal_error(lambda: list(controller.stream(command="exhaust", kind=kind)))
    assert isinstance(error, RankOutOfMemoryError)
    assert isinstance(error, RunnerFailedError)
    assert error.cause_type == name
    assert "ran out of memory" in str(error)


# --- the folders ---


def make_folder(parent: Path, name: str, made_at: float) -> Path:
    folder = parent / name
    folder.mkdir()
    os.utime(folder, (made_at, made_at))
    return folder


def test_of_the_folders_that_bad_ends_left_the_newest_stay(own_temporary_folder: Path) -> None:
    """93: but one that a living controller holds is never touched, and nothing of anybody else."""
    old = [make_folder(own_temporary_folder, f"mgpu-{i:02}", made_at=1000.0 + i) for i in range(KEPT_FOLDERS + 3)]
    other = make_folder(own_temporary_folder, "other", made_at=1.0)
    held = os.open(old[0], os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    logs = FleetLogs(None)
    assert [folder.exists() for folder in old] == [True, False, False] + [True] * KEPT_FOLDERS
    assert other.exists()
    logs.close(is_evidence=False)
    assert not logs.folder.exists()
    os.close(held)
