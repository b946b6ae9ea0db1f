"""What only GPUs can show: NCCL, CUDA tensors in and out, devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.worker.mgpu.conftest import assert_gone
from tests.worker.mgpu.runners import CommandRunner
from tests.worker.mgpu.test_tensors import DTYPES, random_bits
from worker.mgpu import FatalFleetError, MGPUController
from worker.mgpu.tensors import as_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")

Make = Callable[..., MGPUController]


@pytest.fixture(scope="module")
def on_gpus() -> Iterator[MGPUController]:
    controller = MGPUController(CommandRunner)
    controller.start()
    yield controller
    controller.shutdown()


def test_each_rank_has_its_gpu(on_gpus: MGPUController) -> None:
    """4, 7, 8"""
    told = sorted(item["device"] for item in on_gpus.stream(command="describe"))
    assert told == [f"cuda:{index}" for index in range(torch.cuda.device_count())]


@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_every_dtype_arrives_on_every_gpu_bit_by_bit(on_gpus: MGPUController, source: str) -> None:
    """45, 46, 47, 52: in from either, out through CUDA IPC."""
    sent = {f"t{i}": random_bits(dtype, 12).to(source) for i, dtype in enumerate(DTYPES)}
    sent |= {"scalar": torch.tensor(2.5, device=source), "empty": torch.empty(0, 3, device=source)}
    sent |= {"big": torch.randn(20 << 20, device=source), "other": torch.arange(5)}
    for rank, kwargs in on_gpus.stream(command="echo", **sent):
        for name, tensor in sent.items():
            got = kwargs[name]
            assert got.device == torch.device("cuda", rank), name
            assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(as_bytes(got).cpu(), as_bytes(tensor).cpu()), name


def test_a_pending_kernel_is_waited_for(on_gpus: MGPUController) -> None:
    """48: and what the caller writes afterwards is not seen."""
    tensor = torch.zeros(64 << 20, device="cuda")
    for _ in range(50):
        tensor.add_(1)
    stream = on_gpus.stream(command="echo", x=tensor)
    tensor.fill_(-1)
    for _, kwargs in stream:
        assert bool((kwargs["x"] == 50).all())


def test_yielded_cuda_tensors_are_stable(on_gpus: MGPUController) -> None:
    """53, 54, 55"""
    received = list(on_gpus.stream(command="reuse_cuda_buffer", size=1 << 20, times=4))
    on_gpus.stream(command="reuse_cuda_buffer", size=1 << 20, times=4).drain()
    values = sorted(int(tensor[-1]) for tensor in received)
    assert values == sorted(list(range(4)) * torch.cuda.device_count())


def test_nested_cuda_tensors_arrive_on_the_cpu(on_gpus: MGPUController) -> None:
    """50"""
    for _, kwargs in on_gpus.stream(command="echo", nested=[torch.ones(3, device="cuda")]):
        assert kwargs["nested"][0].device.type == "cpu"


def test_a_job_stops_early_on_gpus_too(on_gpus: MGPUController) -> None:
    """Cooperative stop."""
    stream = on_gpus.stream(command="steps", upto=1_000_000)
    next(stream)
    stream.request_stop()
    stream.drain()


def test_hundreds_of_cuda_yields_do_not_pile_up_in_the_ranks(on_gpus: MGPUController) -> None:
    """54, 91: also those that nobody looks at."""
    for _ in range(30):
        on_gpus.stream(command="reuse_cuda_buffer", size=64 << 20, times=16).drain()  # 120 GiB in all, per rank
    for used in on_gpus.stream(command="memory"):
        assert used < 16 << 30  # 9.9e9 measured: what one job has in flight, here and in the rank


def test_outputs_can_be_brought_to_the_cpu(new_fleet: Make) -> None:
    """54; and 7: one given device"""
    last = torch.cuda.device_count() - 1
    controller = new_fleet(num_gpus=None, devices=[last], backend="nccl", outputs="cpu")
    ((_, kwargs),) = controller.stream(command="echo", x=torch.ones(100_000))
    assert kwargs["x"].device.type == "cpu"
    (told,) = controller.stream(command="describe")
    assert told["device"] == f"cuda:{last}"


def test_an_absent_device_is_refused() -> None:
    """4"""
    with pytest.raises(ValueError, match=r"\[99\]"):
        MGPUController(CommandRunner, devices=[99]).start()


@needs_two
@pytest.mark.parametrize("how", ["kill", "key error"])
def test_a_failure_while_the_peer_is_in_a_collective_ends_the_fleet(new_fleet: Make, how: str) -> None:
    """63, 64, 70"""
    controller = new_fleet(backend="nccl")
    stream = controller.stream(command="fail", ranks=[1], how=how)
    pids = [next(stream), next(stream)]
    began = time.monotonic()
    with pytest.raises(FatalFleetError) as caught:
        next(stream)
    assert time.monotonic() - began < 3
    assert caught.value.rank == 1
    assert_gone(pids, within_s=0.5)
