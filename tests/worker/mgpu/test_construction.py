"""What is refused before any process exists."""

from __future__ import annotations

import inspect

import pytest
import torch

from tests.worker.mgpu.conftest import children
from tests.worker.mgpu.runners import CommandRunner, HiddenRunner, InferenceRunner, NotAGenerator
from worker.mgpu import MGPUController, MGPURunner


def test_construction_starts_no_process() -> None:
    """1"""
    before = children()
    controller = MGPUController(CommandRunner, num_gpus=2)
    assert children() == before
    assert not controller.is_alive


def test_the_signature_is_the_contract() -> None:
    """1, 11, 28, 78"""
    parameters = inspect.signature(MGPUController).parameters
    assert list(parameters)[:4] == ["runner_cls", "num_gpus", "devices", "logs_specs"]
    assert inspect.signature(MGPUController.start).parameters["timeout"].default.total_seconds() == 1800
    assert inspect.signature(MGPUController.shutdown).parameters["graceful_timeout"].default == 60.0
    assert inspect.signature(MGPUController.stream).parameters["timeout"].default is None


@pytest.mark.parametrize(
    "placement",
    [
        {"num_gpus": 2, "devices": [0, 1]},
        {"devices": []},
        {"devices": [1, 1]},
        {"devices": [-1]},
        {"devices": [True]},
        {"devices": ["0"]},
        {"num_gpus": 0},
        {"num_gpus": True},
        {"num_gpus": 2, "backend": "mpi"},
        {"backend": "gloo"},
        {"devices": [0], "backend": "gloo"},
        {"num_gpus": 1, "outputs": "disk"},
        {"num_gpus": 1, "collective_timeout": -1},
    ],
)
def test_impossible_placements_are_refused(placement: dict[str, object]) -> None:
    """2, 3, 6"""
    with pytest.raises(ValueError, match=r".+"):
        MGPUController(CommandRunner, **placement)


@pytest.mark.parametrize("not_a_runner", [object, CommandRunner.__call__, MGPURunner, NotAGenerator])
def test_what_is_no_runner_is_refused(not_a_runner: object) -> None:
    """5"""
    with pytest.raises(TypeError):
        MGPUController(not_a_runner, num_gpus=1)


@pytest.mark.parametrize("runner_cls", [InferenceRunner, HiddenRunner])
def test_a_decorated_call_is_accepted(runner_cls: type[MGPURunner]) -> None:
    """5"""
    MGPUController(runner_cls, num_gpus=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu_is_refused_at_start() -> None:
    """4"""
    controller = MGPUController(CommandRunner)
    with pytest.raises(ValueError, match="no CUDA device"):
        controller.start()
    with pytest.raises(RuntimeError):
        controller.stream()


def test_shutdown_before_start_does_nothing() -> None:
    """29, 79"""
    controller = MGPUController(CommandRunner, num_gpus=1)
    controller.shutdown()
    with pytest.raises(RuntimeError, match="start"):
        controller.stream()


def test_what_takes_no_logs_is_refused() -> None:
    """93: a path, say, would be ignored."""
    with pytest.raises(TypeError, match="logs_specs"):
        MGPUController(CommandRunner, num_gpus=1, logs_specs="/some/folder")


def test_a_duration_must_be_a_number() -> None:
    """73"""
    with pytest.raises(ValueError, match="nan"):
        MGPUController(CommandRunner, num_gpus=1, asymmetry_grace=float("nan"))
