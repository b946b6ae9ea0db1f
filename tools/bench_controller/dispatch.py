"""The rows about jobs that go well: what one costs, and a tensor in and out."""

import time
from collections.abc import Callable

import torch

from tools.bench_controller.fleets import JOB_LIMIT_S, Fleets
from tools.bench_controller.measured import Measured, read_to_end
from worker.mgpu import MGPUController

JOBS, WARM_UP_JOBS = 200, 20
TENSORS, WARM_UP_TENSORS = 40, 5
TENSOR_BYTES = 64 << 20


def measure_empty_job(fleets: Fleets) -> Measured:
    controller = fleets.idle()
    return Measured(_repeat(lambda: _time_job(controller), JOBS, WARM_UP_JOBS))


def measure_first_yield(fleets: Fleets) -> Measured:
    controller = fleets.idle()
    return Measured(_repeat(lambda: _time_first_yield(controller), JOBS, WARM_UP_JOBS))


def measure_cpu_tensor(fleets: Fleets) -> Measured:
    return _measure_tensor(fleets.idle(), torch.device("cpu"))


def measure_cuda_tensor(fleets: Fleets) -> Measured:
    return _measure_tensor(fleets.idle(), torch.device("cuda", 0))


def _repeat(measure_once: Callable[[], float], times: int, warm_up: int) -> tuple[float, ...]:
    return tuple([measure_once() for _ in range(warm_up + times)][warm_up:])


def _time_job(controller: MGPUController) -> float:
    begun = time.perf_counter()
    for _ in controller.stream(task="yield_once", timeout=JOB_LIMIT_S):
        pass
    return time.perf_counter() - begun


def _time_first_yield(controller: MGPUController) -> float:
    begun = time.perf_counter()
    stream = controller.stream(task="yield_once", timeout=JOB_LIMIT_S)
    next(stream)
    seconds = time.perf_counter() - begun
    stream.drain()
    return seconds


def _measure_tensor(controller: MGPUController, device: torch.device) -> Measured:
    tensor = torch.randn(TENSOR_BYTES // 4, device=device)
    figures = _repeat(lambda: _time_echo(controller, tensor), TENSORS, WARM_UP_TENSORS)
    return Measured(figures, {"a snapshot": _is_snapshot(controller, tensor)})


def _time_echo(controller: MGPUController, tensor: torch.Tensor) -> float:
    begun = time.perf_counter()
    for _ in controller.stream(task="echo", tensor=tensor, timeout=JOB_LIMIT_S):
        pass
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _is_snapshot(controller: MGPUController, tensor: torch.Tensor) -> bool:
    """Whether a job gets what its tensor held at dispatch."""
    expected = tensor.clone()
    stream = controller.stream(task="echo", tensor=tensor, timeout=JOB_LIMIT_S)
    tensor.zero_()
    match read_to_end(stream).items:
        case (torch.Tensor() as received,):
            return torch.equal(received.to(expected.device), expected)
    return False
