"""Tensors into a job and out of it, on the shared fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from worker.mgpu import MGPUController, State
from worker.mgpu.tensors import as_bytes

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def random_bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    """NaN payloads, infinities and minus zeros among them."""
    generator = torch.Generator().manual_seed(7)
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


def echoed(controller: MGPUController, **tensors: Any) -> list[dict[str, Any]]:
    """What each rank got, in rank order."""
    return [kwargs for _, kwargs in sorted(controller.stream(command="echo", **tensors), key=lambda item: item[0])]


def test_every_dtype_arrives_on_every_rank_bit_by_bit(controller: MGPUController) -> None:
    """45, 46, 52"""
    sent = {f"t{i}": random_bits(dtype, 12).reshape(3, 4) for i, dtype in enumerate(DTYPES)}
    for got in echoed(controller, **sent):
        for name, tensor in sent.items():
            assert got[name].dtype == tensor.dtype
            assert got[name].shape == tensor.shape
            assert torch.equal(as_bytes(got[name]), as_bytes(tensor)), tensor.dtype


def test_every_layout_arrives_contiguous_and_equal(controller: MGPUController) -> None:
    """46"""
    grid = torch.arange(24.0).reshape(2, 3, 4)
    spectrum = torch.complex(grid, -grid)
    sent = {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 5),
        "transposed": grid.transpose(0, 2),
        "strided": grid[:, ::2, 1::2],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "channels_last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "conjugate": spectrum.conj(),
        "negative": spectrum.conj().imag,
    }
    for got in echoed(controller, **sent):
        assert {name: tensor.shape for name, tensor in got.items()} == {n: t.shape for n, t in sent.items()}
        for name, tensor in sent.items():
            assert got[name].is_contiguous(), name
            assert torch.equal(got[name], tensor), name


def test_a_large_tensor_travels_in_chunks(controller: MGPUController) -> None:
    """45: more than one broadcast chunk, and a second tensor behind it."""
    big, small = torch.randn(9 << 20), torch.randn(3)
    for got in echoed(controller, big=big, small=small):
        assert torch.equal(got["big"], big)
        assert torch.equal(got["small"], small)


def test_the_caller_may_write_to_its_tensor_at_once(controller: MGPUController) -> None:
    """47"""
    tensor = torch.zeros(100_000)
    stream = controller.stream(command="echo", x=tensor)
    tensor.fill_(7)
    assert not tensor.is_shared()
    assert all(not kwargs["x"].any() for _, kwargs in stream)


def test_gradients_stay_at_home(controller: MGPUController) -> None:
    """49"""
    leaf = torch.ones(3, requires_grad=True)
    for got in echoed(controller, leaf=leaf, inner=leaf * 2, parameter=torch.nn.Parameter(torch.ones(2))):
        assert [type(tensor) for tensor in got.values()] == [torch.Tensor] * 3
        assert not any(tensor.requires_grad for tensor in got.values())
        assert torch.equal(got["inner"], torch.full((3,), 2.0))


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(3).to_sparse(), torch.empty(2, device="meta"), torch.ones(2).as_subclass(Subclass)],
    ids=["sparse", "meta", "subclass"],
)
def test_tensors_that_are_more_than_elements_are_refused(controller: MGPUController, tensor: torch.Tensor) -> None:
    """49"""
    with pytest.raises(TypeError, match="keyword latent"):
        controller.stream(command="echo", latent=tensor)
    assert controller.status().state is State.IDLE


def test_nested_tensors_arrive_too(controller: MGPUController) -> None:
    """50"""
    nested = {"list": [torch.arange(100_000), torch.tensor(1)], "deep": {"er": (torch.ones(2),)}}
    for got in echoed(controller, nested=nested):
        assert torch.equal(got["nested"]["list"][0], torch.arange(100_000))
        assert got["nested"]["deep"]["er"][0].device.type == "cpu"


def test_each_rank_has_its_own_copy(controller: MGPUController) -> None:
    """51"""
    tensor = torch.zeros(20_000)
    for rank, before, after in controller.stream(command="write_into", x=tensor):
        assert not before.any()
        assert torch.equal(after, torch.full((20_000,), rank + 100.0))
    assert not tensor.any()


def test_one_tensor_under_two_names_is_two_tensors(controller: MGPUController) -> None:
    """51"""
    tensor = torch.ones(20_000)
    for untouched in controller.stream(command="write_first", x=tensor, y=tensor):
        assert torch.equal(untouched, tensor)


@pytest.mark.parametrize("size", [8, 100_000], ids=["inline", "segment"])
def test_a_yielded_tensor_does_not_change_any_more(controller: MGPUController, size: int) -> None:
    """53, 55: though the runner refills its one buffer, and through later jobs."""
    received = list(controller.stream(command="reuse_buffer", size=size, times=4))
    controller.stream(command="reuse_buffer", size=size, times=2).drain()
    assert sorted(int(tensor[-1]) for tensor in received) == [0, 0, 1, 1, 2, 2, 3, 3]
    received[0].add_(1)  # and it is the caller's own


def test_thousands_of_held_tensors_cost_no_descriptors(
    controller: MGPUController, descriptors: Callable[[], int]
) -> None:
    """56"""
    before = descriptors()
    held = list(controller.stream(command="fresh_tensors", size=10_000, times=1000))
    assert len(held) == 2000
    assert descriptors() == before
    assert int(held[-1][0]) == 999


def test_a_dtype_that_only_has_bits_survives_a_yield(controller: MGPUController) -> None:
    """46"""
    packed = torch.arange(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for got in echoed(controller, packed=packed):
        assert got["packed"].dtype == torch.float4_e2m1fn_x2
        assert torch.equal(got["packed"].view(torch.uint8), torch.arange(6, dtype=torch.uint8))
