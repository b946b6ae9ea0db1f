"""NVFP4 on a GPU, at the sizes of the real model: the kernel against torch alone, layers against fp64."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

from h3.nvfp4 import (
    NVFP4Linear,
    PackedWeight,
    dequantise,
    dequantise_eagerly,
    fp4_gemm,
    probe_fp4,
    quantise,
)
from tests.h3.packed import take_columns, take_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

GPU = torch.device("cuda", 0)
MODEL_SIZES = [(21504, 5376), (5376, 7168), (28672, 5376), (5376, 14336)]  # qkv, out_proj, fc1, fc2
TEXT_SIZES = [(1024, 5120), (25600, 5120), (5120, 25600)]  # the text encoder's
RAGGED_SIZES = [(1, 16), (16, 16), (1, 64), (127, 48), (128, 64), (129, 80), (300, 352), (5, 1120), (1000, 4112)]
DTYPES = [torch.bfloat16, torch.float32]
SCALES = [0.0123, 1 + 2**-9, 1.23e-38, 7.7e-41, 3e-45, 1e35]  # the third gives subnormals, the next two are such
BF16_GATE = 4e-3  # relative L2 against fp64: rounding weight and output is some 2.4e-3
ROUNDS = 20


def random_packed(rows: int, columns: int, scale: float = 0.0123) -> PackedWeight:
    """Any codes and any finite scales, those of the padding too."""
    generator = torch.Generator(GPU).manual_seed(rows + columns)
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device=GPU, generator=generator)
    shape = (rows + -rows % 128, columns // 16 + -(columns // 16) % 4)
    scales = torch.randint(0, 127, shape, dtype=torch.uint8, device=GPU, generator=generator)
    return PackedWeight(codes, scales.view(torch.float8_e4m3fn), torch.tensor(scale, device=GPU))


def random_layer(rows: int, columns: int) -> NVFP4Linear:
    """Weights as in a model: normal, of unlike size by block. It never multiplies in FP4."""
    generator = torch.Generator(GPU).manual_seed(0)
    sizes = torch.rand(rows, columns // 16, 1, device=GPU, generator=generator) + 0.2
    weight = torch.randn(rows, columns // 16, 16, device=GPU, generator=generator) * sizes * 0.02
    packed = quantise(weight.flatten(1))
    layer = NVFP4Linear(columns, rows, full_precision=True).to(GPU)
    layer.load_state_dict({"weight": packed.codes, "weight_scale": packed.scales, "weight_scale_2": packed.scale})
    return layer


def exact_weight(layer: NVFP4Linear) -> torch.Tensor:
    """In fp64. Without the tensor scale, fp32 holds every value exactly."""
    packed = layer.packed
    unscaled = PackedWeight(packed.codes, packed.scales, torch.ones_like(packed.scale))
    values = dequantise_eagerly(unscaled, torch.empty(packed.rows, packed.columns, device=GPU))
    return values.double() * packed.scale.double()


def random_input(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, columns, device=GPU, generator=torch.Generator(GPU).manual_seed(1)).to(dtype)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[left.element_size()]
    return left.dtype == right.dtype and torch.equal(left.view(integers), right.view(integers))


def same_packed(left: PackedWeight, right: PackedWeight) -> bool:
    right = right.to(left.codes.device)
    return all(same_bits(getattr(left, name), getattr(right, name)) for name in ("codes", "scales", "scale"))


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def tell(line: str) -> None:
    print(line)  # noqa: T201 - half of what these tests are for


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [*RAGGED_SIZES, *MODEL_SIZES, *TEXT_SIZES])
def test_the_kernel_gives_the_bits_of_torch_alone(rows, columns, dtype):
    packed = random_packed(rows, columns)
    guarded = torch.full((rows * columns + 4096,), 7.0, dtype=dtype, device=GPU)
    out = guarded[: rows * columns].view(rows, columns)
    assert dequantise(packed, dtype, out) is out
    assert same_bits(out, dequantise_eagerly(packed, torch.empty_like(out)))
    assert bool((guarded[rows * columns :] == 7).all())  # nothing is written behind it


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
def test_the_kernel_gives_the_bits_of_the_cpu_at_any_size_of_the_values(scale, dtype):
    packed = random_packed(300, 352, scale)
    assert same_bits(dequantise(packed, dtype).cpu(), dequantise(packed.to(torch.device("cpu")), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, *SCALES])
def test_the_kernel_has_every_code_and_scale_right_and_shows_a_nan(scale, dtype):
    codes = torch.arange(256, device=GPU).to(torch.uint8).repeat(256, 1)
    scales = torch.arange(256, device=GPU).to(torch.uint8)[:, None].expand(256, 32).contiguous()
    # Rows of a tile lie in the order of the swizzle; every scale is there, whichever row has it.
    packed = PackedWeight(codes, scales.view(torch.float8_e4m3fn), torch.tensor(scale, device=GPU))
    found, expected = dequantise(packed, dtype), dequantise_eagerly(packed, torch.empty(256, 512, device=GPU))
    assert torch.equal(found.isnan(), expected.isnan())
    assert bool(expected.isnan().any())
    assert same_bits(found.nan_to_num(0), expected.to(dtype).nan_to_num(0))


def test_the_kernel_reads_a_scale_wherever_it_lies():
    packed = random_packed(128, 64)
    scales = packed.scale.repeat(5)
    for number in range(5):  # four of them not at a multiple of 16 bytes
        moved = PackedWeight(packed.codes, packed.scales, scales[number])
        assert same_bits(dequantise(moved, torch.bfloat16), dequantise(packed, torch.bfloat16))


def test_quantising_and_slicing_give_the_bytes_of_the_cpu():
    weight = torch.randn(300, 352, generator=torch.Generator().manual_seed(3)) * torch.logspace(-6, 3, 352)
    here, there = quantise(weight), quantise(weight.to(GPU))
    assert same_packed(here, there)
    assert same_packed(take_columns(here, slice(16, 80)), take_columns(there, slice(16, 80)))
    assert same_packed(take_columns(here, slice(64, 192)), take_columns(there, slice(64, 192)))
    order = torch.randperm(300, generator=torch.Generator().manual_seed(4))
    assert same_packed(take_rows(here, order), take_rows(there, order.to(GPU)))
    assert same_bits(dequantise(here, torch.bfloat16), dequantise(there, torch.bfloat16).cpu())


@pytest.mark.parametrize(("rows", "columns"), MODEL_SIZES)
@torch.inference_mode()
def test_a_layer_of_the_model_is_the_fp64_product_within_bf16(rows, columns):
    layer = random_layer(rows, columns)
    x = random_input(300, columns, torch.bfloat16)
    expected = x.double() @ exact_weight(layer).T
    error = distance(layer(x), expected)
    tell(f"[{rows}, {columns}] bf16: {error:.2e}, allowed {BF16_GATE:.0e}")
    assert error <= BF16_GATE


@torch.inference_mode()
def test_a_layer_in_fp32_is_the_fp64_product():
    layer = random_layer(300, 352)
    x = random_input(100, 352, torch.float32)
    expected = x.double() @ exact_weight(layer).T
    assert distance(layer(x), expected) <= 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(300, 352), *MODEL_SIZES])
@torch.inference_mode()
def test_a_layer_gives_the_bits_of_a_plain_one_with_its_dequantised_weight(rows, columns, dtype):
    layer, x = random_layer(rows, columns), random_input(300, columns, dtype)
    weight = dequantise_eagerly(layer.packed, torch.empty(rows, columns, dtype=dtype, device=GPU))
    assert same_bits(layer(x), F.linear(x, weight))


@torch.inference_mode()
def test_a_layer_whose_scale_is_written_anew_takes_it():
    layer, x = random_layer(256, 352), random_input(300, 352, torch.bfloat16)
    before = layer(x)
    layer.load_state_dict({**layer.state_dict(), "weight_scale_2": 2 * layer.weight_scale_2})
    assert same_bits(layer(x), 2 * before)


@contextmanager
def never_waiting() -> Iterator[None]:
    """What waits for the GPU in here fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@torch.inference_mode()
def test_a_layer_never_waits_for_the_gpu():
    layer, x = random_layer(256, 352), random_input(300, 352, torch.bfloat16)
    layer(x)
    with never_waiting():
        layer(x)


@torch.inference_mode()
def test_quantising_an_activation_never_waits_for_the_gpu(monkeypatch):
    """Also on a GPU without the FP4 product itself, which is left out here."""
    packed, x = quantise(random_input(256, 352, torch.float32)), random_input(300, 352, torch.bfloat16)
    shapes = []

    def product(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        shapes.append((tuple(a.shape), tuple(b.shape)))
        return torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16, device=GPU)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    fp4_gemm(x, packed)
    with never_waiting():
        assert fp4_gemm(x, packed).shape == (300, 256)
    assert shapes == 2 * [((304, 176), (176, 256))]


def test_the_probe_decides_and_says_why(caplog):
    probe_fp4.cache_clear()
    with caplog.at_level(logging.INFO, "h3.nvfp4"):
        decision = probe_fp4(GPU)
    (record,) = caplog.records
    tell(record.getMessage())
    assert isinstance(decision, bool)
    assert str(GPU) in record.getMessage()
    assert bool(torch.ones(1, device=GPU).item())  # the trial has left the GPU usable
