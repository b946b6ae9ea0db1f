"""What only GPUs can show: NCCL, CUDA tensors in and out, devices."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.waiting import eventually
from tests.worker.mgpu.conftest import assert_gone, await_equal, children
from tests.worker.mgpu.runners import CommandRunner
from tests.worker.mgpu.scripts import RunScript, read_line, read_pids
from tests.worker.mgpu.test_tensors import DTYPES, random_bits
from worker.mgpu import (
    Borrowed,
    FatalFleetError,
    FleetDesyncError,
    JobTimeoutError,
    MGPUController,
    RankDiedError,
    RankOutOfMemoryError,
    State,
)
from worker.mgpu.tensors import as_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")

Make = Callable[..., MGPUController]
GIB = 1 << 30
# A context and NCCL's buffers are gigabytes; what the driver keeps for a device at large is less than this.
NOISE_BYTES = 256 << 20


class CudaRunner(CommandRunner):
    def hold(self, size_bytes: int) -> Iterator[Any]:
        self.held = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        yield self.held.numel()

    def lend(self, times: int) -> Iterator[Any]:
        buffer = torch.empty(1 << 20, device=self.device)
        for value in range(times):
            buffer.fill_(value)
            yield Borrowed(buffer)

    def exhaust(self) -> Iterator[Any]:
        yield "before"
        torch.empty(1 << 50, dtype=torch.uint8, device=self.device)

    def meet(self, absent: int, refuse: bool = False) -> Iterator[Any]:
        """An all-reduce that rank `absent` stays away from."""
        yield "ready"
        if self.rank == absent:
            if refuse:
                raise ValueError("only here")
            threading.Event().wait()
        dist.all_reduce(torch.ones(1 << 20, device=self.device))
        torch.cuda.synchronize()

    def capture(self) -> Iterator[Any]:
        """A collective inside of a CUDA graph, kept until the end; and torch's compiler loaded."""
        import torch._dynamo

        self.buffer = torch.ones(1 << 10, device=self.device)
        dist.all_reduce(self.buffer)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            dist.all_reduce(self.buffer)
        self.graph.replay()
        torch.cuda.synchronize()
        yield float(self.buffer[0])

    def yield_then_die(self) -> Iterator[Any]:
        yield torch.ones(1 << 20, device=self.device)
        os.kill(os.getpid(), signal.SIGKILL)

    def sum_in_groups(self) -> Iterator[Any]:
        sums = []
        for group in (self.groups.transformer_group, self.groups.vae_group, self.groups.gemma_group):
            tensor = torch.ones(1, device=self.device)
            dist.all_reduce(tensor, group=group)
            sums.append(int(tensor))
        yield sums

    def identify(self) -> Iterator[Any]:
        yield str(torch.cuda.get_device_properties(self.device).uuid)


def used_bytes() -> list[int]:
    """Of every GPU, by all processes."""
    free_and_total = [torch.cuda.mem_get_info(index) for index in range(torch.cuda.device_count())]
    return [total - free for free, total in free_and_total]


def await_memory(baseline: list[int], within_s: float) -> None:
    def is_back() -> bool:
        return all(now < before + NOISE_BYTES for now, before in zip(used_bytes(), baseline, strict=True))

    eventually(is_back, timeout_s=within_s)


@pytest.fixture(scope="module")
def on_gpus() -> Iterator[MGPUController]:
    controller = MGPUController(CudaRunner, allow_shared=True)
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


def test_outputs_can_be_brought_to_the_cpu(own_fleet: Make) -> None:
    """7, 54: on one given device."""
    last = torch.cuda.device_count() - 1
    controller = own_fleet(devices=[last], outputs="cpu")
    ((_, kwargs),) = controller.stream(command="echo", x=torch.ones(100_000))
    assert kwargs["x"].device.type == "cpu"
    (told,) = controller.stream(command="describe")
    assert told["device"] == f"cuda:{last}"


def test_an_absent_device_is_refused() -> None:
    """4"""
    with pytest.raises(ValueError, match=r"\[99\]"):
        MGPUController(CommandRunner, devices=[99]).start()


def test_a_borrowed_tensor_is_the_ranks_own_memory(on_gpus: MGPUController) -> None:
    """53: right while it is lent, and the rank does not go on before the caller asks for more."""
    stream = on_gpus.stream(command="lend", times=4)
    values: dict[int, list[float]] = {}
    for tensor in stream:
        values.setdefault(stream.last_rank, []).append(float(tensor[-1]))
    assert values == {rank: [0, 1, 2, 3] for rank in range(torch.cuda.device_count())}


@pytest.fixture
def own_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Of the test alone, on all GPUs; the module's fleet may sit on them too.

    Descriptors are not counted: CUDA opens its own in this process whenever it likes.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[MGPUController] = []
    before = children(), shared_memory()

    def start(**kwargs: Any) -> MGPUController:
        made.append(MGPUController(CudaRunner, **{"allow_shared": True, **kwargs}))
        made[-1].start()
        return made[-1]

    yield start
    while made:
        made.pop().shutdown(graceful_timeout=0)
    await_equal(lambda: (children(), shared_memory()), before)


def shared_memory() -> set[str]:
    """Files in shared memory, but for those that this process keeps until it ends."""
    own = (f"torch_{os.getpid()}_", f"cuda.shm.{os.getuid():x}.{os.getpid():x}.")
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith(own)}


def test_expandable_segments_fall_back_to_the_cpu(own_fleet: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """59: with a warning, and for what is yielded; in is a broadcast as ever."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, "expandable_segments:True")
    lines: list[str] = []
    controller = own_fleet(num_gpus=1, logs_specs=lambda _, line: lines.append(line))
    ((_, kwargs),) = controller.stream(command="echo", x=torch.arange(100_000, device="cuda"))
    assert torch.equal(kwargs["x"], torch.arange(100_000))
    assert any("expandable segments" in line for line in lines)


def test_a_device_has_one_fleet_unless_shared(on_gpus: MGPUController, own_fleet: Make) -> None:
    """10"""
    with pytest.raises(ValueError, match=r"devices \[0\]"):
        own_fleet(num_gpus=1, allow_shared=False)
    assert on_gpus.is_alive


def test_a_rank_without_gpu_memory_is_named_and_its_memory_comes_back(own_fleet: Make) -> None:
    """67: with the allocator's own summary."""
    baseline = used_bytes()
    controller = own_fleet()
    controller.stream(command="hold", size_bytes=2 * GIB).drain()
    stream = controller.stream(command="exhaust")
    with pytest.raises(RankOutOfMemoryError, match="memory summary"):
        list(stream)
    controller.shutdown()
    await_memory(baseline, within_s=1)


def test_graphs_that_captured_collectives_do_not_hold_up_the_end(own_fleet: Make) -> None:
    """92"""
    controller = own_fleet()
    size = torch.cuda.device_count()
    assert list(controller.stream(command="capture")) == [float(size**2)] * size
    began = time.monotonic()
    controller.shutdown()
    assert time.monotonic() - began < 6
    assert controller.status().state is State.STOPPED


def test_a_fleet_may_idle_beyond_the_collective_timeout(own_fleet: Make) -> None:
    """90: NCCL's watchdog has nothing to watch."""
    controller = own_fleet(collective_timeout=3)
    assert list(controller.stream(command="sum_up"))
    assert threading.Event().wait(8) is False
    assert len(list(controller.stream(command="sum_up"))) == torch.cuda.device_count()


@needs_two
def test_a_fleet_on_the_second_gpu_leaves_the_first_alone(own_fleet: Make) -> None:
    """7, 8"""
    torch.cuda.synchronize(1)  # our own context there
    baseline = used_bytes()
    controller = own_fleet(devices=[1])
    ((_, kwargs),) = controller.stream(command="echo", x=torch.ones(100_000, device="cuda:0"))
    assert kwargs["x"].device == torch.device("cuda", 1)
    controller.stream(command="hold", size_bytes=2 * GIB).drain()
    first, second = used_bytes()
    assert first < baseline[0] + NOISE_BYTES
    assert second > baseline[1] + 2 * GIB


@needs_two
def test_devices_are_counted_as_the_controller_sees_them(
    run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7"""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    script = run_script(
        """
from tests.worker.mgpu.test_cuda import CudaRunner

if __name__ == "__main__":
    with MGPUController(CudaRunner, devices=[0]) as controller:
        controller.start()
        print(*controller.stream(command="identify"), flush=True)
"""
    )
    assert read_line(script) == str(torch.cuda.get_device_properties(1).uuid)


@needs_two
def test_fleets_on_disjoint_devices_do_not_touch_each_other(own_fleet: Make) -> None:
    """9: both work at once; one is poisoned, the other's job goes on."""
    first, second = own_fleet(devices=[0]), own_fleet(devices=[1])
    longer = second.stream(command="steps", upto=1_000_000)
    next(longer)
    with pytest.raises(FatalFleetError):
        list(first.stream(command="fail", ranks=[0], how="kill"))
    first.shutdown()
    longer.request_stop("enough")
    longer.drain()
    assert second.is_alive


@needs_two
def test_a_rank_killed_with_much_memory_is_told_at_once_and_the_memory_comes_back(own_fleet: Make) -> None:
    """64, 70, 85: the caller does not wait for the driver; shutdown() does."""
    baseline = used_bytes()
    controller = own_fleet()
    controller.stream(command="hold", size_bytes=12 * GIB).drain()
    stream = controller.stream(command="fail", ranks=[1], how="kill")
    assert [next(stream), next(stream)]
    began = time.monotonic()
    with pytest.raises(RankDiedError):
        next(stream)
    assert time.monotonic() - began < 0.5
    controller.shutdown()
    await_memory(baseline, within_s=1)


@needs_two
@pytest.mark.parametrize(
    ("refuse", "error_type"), [(True, FleetDesyncError), (False, JobTimeoutError)], ids=["desync", "time-out"]
)
def test_a_stuck_collective_is_told_with_stacks_and_what_was_recorded(
    own_fleet: Make, refuse: bool, error_type: type[FatalFleetError]
) -> None:
    """63, 73, 75: in time; the record is complete when shutdown() returns, and the ranks are gone."""
    controller = own_fleet(asymmetry_grace=1)
    pids = [rank.pid for rank in controller.status().ranks]
    list(controller.stream(command="sum_up"))
    began = time.monotonic()
    stream = controller.stream(command="meet", absent=1, refuse=refuse, timeout=2)
    with pytest.raises(error_type) as caught:
        list(stream)
    assert time.monotonic() - began < (1 if refuse else 2) + 0.3
    names = [path.name for path in caught.value.evidence]
    assert {"rank0.stacks", "rank1.stacks", "collectives-rank0", "collectives-rank1"} <= set(names)
    controller.shutdown()
    assert time.monotonic() - began < 2 + 3.3
    assert_gone(pids, within_s=0)
    for path in caught.value.evidence:
        if path.name.startswith("collectives-rank"):
            recorded = pickle.loads(path.read_bytes())  # what our own rank wrote
            assert any("all_reduce" in entry["profiling_name"] for entry in recorded["entries"])


@needs_two
def test_gpu_memory_comes_back_when_the_controller_is_killed_during_a_collective(run_script: RunScript) -> None:
    """85"""
    baseline = used_bytes()
    script = run_script(
        """
from tests.worker.mgpu.test_cuda import CudaRunner

if __name__ == "__main__":
    controller = MGPUController(CudaRunner)
    controller.start()
    tell_pids(controller)
    stream = controller.stream(command="meet", absent=1)
    next(stream), next(stream)
    print("ready", flush=True)
    next(stream)
"""
    )
    pids = read_pids(script)
    assert read_line(script) == "ready"
    script.kill()
    assert_gone(pids, within_s=2)
    await_memory(baseline, within_s=2)


def test_items_in_the_memory_of_a_rank_that_died_are_no_riddle(own_fleet: Make) -> None:
    """72: they are lost with a word in the log, and what comes out is the death."""
    controller = own_fleet(devices=[0])
    stream = controller.stream(command="yield_then_die")
    eventually(lambda: not controller.is_alive)
    with pytest.raises(RankDiedError):
        next(stream)


@pytest.mark.parametrize("is_shared", [True, False])
def test_groups_are_one_communicator_or_three(own_fleet: Make, is_shared: bool) -> None:
    """13: and both work."""
    controller = own_fleet(share_groups=is_shared)
    size = torch.cuda.device_count()
    assert list(controller.stream(command="sum_in_groups")) == [[size] * 3] * size
    assert controller.is_alive


@needs_two
@pytest.mark.parametrize("how", ["kill", "key error"])
def test_a_failure_while_the_peer_is_in_a_collective_ends_the_fleet(own_fleet: Make, how: str) -> None:
    """63, 64, 70"""
    controller = own_fleet()
    stream = controller.stream(command="fail", ranks=[1], how=how)
    pids = [next(stream), next(stream)]
    began = time.monotonic()
    with pytest.raises(FatalFleetError) as caught:
        next(stream)
    assert time.monotonic() - began < 0.5
    assert caught.value.rank == 1
    assert_gone(pids, within_s=3)
