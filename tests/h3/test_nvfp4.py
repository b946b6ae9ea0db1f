"""NVFP4 against oracles that are written out value by value, in Python and fp64, from the format alone."""

import logging
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from h3 import nvfp4
from h3.errors import CheckpointError, ConfigError
from h3.nvfp4 import (
    NVFP4Linear,
    PackedWeight,
    Scratch,
    dequantise,
    probe_fp4,
    quantise,
    slice_code_columns,
    slice_scale_columns,
    swizzle,
    unswizzle,
)
from tests.h3.packed import take_columns, take_rows

CPU = torch.device("cpu")
CODES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
CODES += [-value for value in CODES]
BF16_GATE, FP32_GATE = 4e-3, 1e-6  # relative L2 against fp64: a few roundings of the output's dtype


def e4m3(byte):
    sign, exponent, mantissa = -1 if byte & 128 else 1, byte >> 3 & 15, byte & 7
    return sign * (mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


E4M3 = [e4m3(byte) for byte in range(127)]  # the finite ones; 127 is NaN


def nearest(value, grid):
    """Index of the nearest of a few positive numbers, of the even one between two."""
    return min(range(len(grid)), key=lambda index: (abs(value - grid[index]), index % 2))


def scale_offset(row, column, columns):
    tile = (row // 128) * math.ceil(columns / 4) + column // 4
    return tile * 512 + (row % 32) * 16 + ((row % 128) // 32) * 4 + column % 4


def quantise_by_hand(weight):
    """Codes [N, K], scale bytes [N, K/16] and tensor scale of a fp32 array, one value after another."""
    f = np.float32
    with np.errstate(all="ignore"):
        scale = f(np.abs(weight).max() / f(448 * 6))
        codes = np.zeros(weight.shape, np.uint8)
        scales = np.zeros((weight.shape[0], weight.shape[1] // 16), np.uint8)
        for n, s in np.ndindex(scales.shape):
            block = weight[n, 16 * s : 16 * s + 16]
            if scale > 0:
                scales[n, s] = nearest(min(float(np.abs(block).max() / f(6) / scale), 448.0), E4M3)
            step = f(E4M3[scales[n, s]]) * scale
            for k, value in enumerate(block):
                steps = min(abs(float(value / step)), 6.0) if step > 0 else 0.0
                negative = np.signbit(value) and step > 0
                codes[n, 16 * s + k] = nearest(steps, CODES[:8]) + (8 if negative else 0)
    return codes, scales, scale


def weight_by_hand(packed, even_shift=4, offset=scale_offset):
    """The packed weight [N, K] in fp64; the other arguments are there to be wrong."""
    rows, columns = packed.codes.shape[0], 2 * packed.codes.shape[1]
    values, stored = torch.tensor(CODES, dtype=torch.float64), packed.codes.int()
    even, odd = values[stored >> even_shift & 15], values[stored >> 4 - even_shift & 15]
    scales = packed.scales.view(torch.uint8).flatten().tolist()
    blocks = columns // 16
    factors = torch.tensor([[e4m3(scales[offset(n, s, blocks)]) for s in range(blocks)] for n in range(rows)])
    return torch.stack([even, odd], -1).flatten(1) * factors.double().repeat_interleave(16, 1) * packed.scale.double()


def random_weight(rows, columns, seed=0):
    """Blocks of unlike sizes, so that a scale at the wrong place shows."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-3, 4, (rows, columns // 16, 1), generator=generator).exp2()
    return (torch.randn(rows, columns // 16, 16, generator=generator) * sizes).flatten(1)


def random_layer(inputs, outputs, has_pre_scale=False, full_precision=False):
    packed = quantise(random_weight(outputs, inputs) * 0.02)
    layer = NVFP4Linear(inputs, outputs, has_pre_scale, full_precision)
    state = {"weight": packed.codes, "weight_scale": packed.scales, "weight_scale_2": packed.scale}
    if has_pre_scale:
        state["pre_quant_scale"] = torch.linspace(0.5, 2, inputs).to(torch.bfloat16)
    layer.load_state_dict(state)
    return layer


def random_input(columns, dtype, *shape):
    return torch.randn(*shape, columns, generator=torch.Generator().manual_seed(1)).to(dtype)


def distance(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


def same_bits(left, right):
    return left.dtype == right.dtype and torch.equal(left.signbit(), right.signbit()) and torch.equal(left, right)


def same_packed(left, right):
    return (
        torch.equal(left.codes, right.codes)
        and torch.equal(left.scales.view(torch.uint8), right.scales.view(torch.uint8))
        and torch.equal(left.scale, right.scale)
    )


def is_padded_with_zeros(packed):
    clean = swizzle(unswizzle(packed.scales, packed.rows, packed.blocks))
    return torch.equal(clean.view(torch.uint8), packed.scales.view(torch.uint8))


sizes = st.tuples(st.integers(1, 300), st.integers(1, 13))


@settings(deadline=None, max_examples=25)
@given(sizes)
def test_swizzling_puts_each_scale_where_the_formula_has_it_and_zeros_elsewhere(size):
    rows, columns = size
    scales = torch.randint(1, 127, size, dtype=torch.uint8)
    tiled = swizzle(scales.view(torch.float8_e4m3fn))
    assert tiled.shape == (math.ceil(rows / 128) * 128, math.ceil(columns / 4) * 4)
    expected = [0] * tiled.numel()
    for row, column in np.ndindex(size):
        expected[scale_offset(row, column, columns)] = int(scales[row, column])
    assert tiled.view(torch.uint8).flatten().tolist() == expected
    assert torch.equal(unswizzle(tiled, *size).view(torch.uint8), scales)


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.float32, (3, 32), elements=st.floats(allow_nan=False, allow_infinity=False, width=32)))
@example(np.full((3, 32), 5.3e-42, np.float32))  # fp32 has the tensor scale 29 % too small: both clamps act
def test_quantising_equals_the_search_for_the_nearest_value(weight):
    codes, scales, scale = quantise_by_hand(weight)
    packed = quantise(torch.from_numpy(weight))
    assert packed.scale.item() == scale
    assert np.array_equal(unswizzle(packed.scales, 3, 2).view(torch.uint8).numpy(), scales)
    assert np.array_equal(packed.codes.numpy(), codes[:, 0::2] << 4 | codes[:, 1::2])


def test_a_value_between_two_codes_takes_the_even_one():
    """The block's largest is 6, its scale and the tensor's are powers of two: so every quotient is exact."""
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    row = torch.tensor([[6.0, *ties, *(-tie for tie in ties), 0.0]])
    packed = quantise(torch.cat([row, torch.tensor([[6 * 448.0] + 15 * [0.0]])]))
    found = dequantise(packed, torch.bfloat16)
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert found[0].tolist() == [6.0, *even, *(-value for value in even), 0.0]


def every_code_and_scale(scale):
    """A row for each finite e4m3, with every byte of codes."""
    scale_bytes = torch.tensor([*range(127), *range(128, 255)], dtype=torch.uint8)
    codes = torch.arange(256).to(torch.uint8).expand(len(scale_bytes), 256).contiguous()
    scales = scale_bytes[:, None].expand(-1, 32).view(torch.float8_e4m3fn)
    return PackedWeight(codes, swizzle(scales), torch.tensor(scale))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dequantising_without_a_tensor_scale_is_exact_for_every_code_and_scale(dtype):
    packed = every_code_and_scale(1.0)
    assert same_bits(dequantise(packed, dtype).double(), weight_by_hand(packed))


def round_to_bfloat16(values):
    """Bits of the nearest bf16, the even one between two, of an array of finite fp32."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    "scale",
    [0.0123, 1 + 2**-9, 1.23e-38, 7.7e-41, 3e-45, 1e35],
    ids=["usual", "half a step of bf16", "subnormal results", "subnormal", "nearly nothing", "huge"],
)
def test_dequantising_multiplies_the_scales_in_fp32_and_rounds_once(scale):
    packed = every_code_and_scale(scale)
    scales = np.array([e4m3(byte) for byte in [*range(127), *range(128, 255)]], np.float32)
    factors = scales[:, None] * np.float32(scale)
    nibbles = np.stack([packed.codes.numpy() >> 4, packed.codes.numpy() & 15], -1).reshape(-1, 512)
    expected = np.array(CODES, np.float32)[nibbles] * factors
    found, rounded = dequantise(packed, torch.float32), dequantise(packed, torch.bfloat16)
    assert np.array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))
    assert np.array_equal(rounded.view(torch.uint16).numpy(), round_to_bfloat16(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dequantising_writes_into_what_it_is_given(dtype):
    packed = quantise(random_weight(130, 80))
    out = torch.full((130, 80), math.nan, dtype=dtype)
    assert dequantise(packed, dtype, out) is out
    assert same_bits(out, dequantise(packed, dtype))


def test_the_high_nibble_is_the_even_element():
    codes = torch.tensor([[0x2A, 0x7F, 0x10, 0x80, 0x35, 0xC4, 0x6E, 0x09]], dtype=torch.uint8)
    packed = PackedWeight(codes, swizzle(torch.tensor([[2.0]]).to(torch.float8_e4m3fn)), torch.tensor(0.5))
    halves = [1, -1, 6, -6, 0.5, 0, -0.0, 0, 1.5, 3, -2, 2, 4, -4, 0, -0.5]
    assert dequantise(packed, torch.float32)[0].tolist() == halves


def test_a_weight_survives_quantising_within_the_error_of_its_format():
    weight = random_weight(256, 512)
    assert 0.05 < distance(dequantise(quantise(weight), torch.float32), weight.double()) < 0.12


def test_quantising_what_was_quantised_changes_nothing():
    packed = quantise(random_weight(200, 352))
    again = quantise(dequantise(packed, torch.float32))
    assert torch.equal(dequantise(again, torch.float32), dequantise(packed, torch.float32))


def test_a_zero_weight_is_zero_and_so_is_a_zero_block():
    assert not dequantise(quantise(torch.zeros(3, 32)), torch.float32).any()
    weight = random_weight(3, 64)
    weight[1, 16:48] = -0.0
    packed = quantise(weight)
    assert not packed.codes[1, 8:24].any()
    assert torch.equal(dequantise(packed, torch.float32) == 0, weight_by_hand(packed) == 0)
    assert not dequantise(packed, torch.float32)[1, 16:48].any()


def test_a_huge_outlier_silences_small_blocks_and_harms_nothing_else():
    weight = torch.full((2, 48), 1e-3)
    weight[0, 20] = 1e4
    weight[1] = 10.0
    found = dequantise(quantise(weight), torch.float32)
    assert found[0, 20].item() == pytest.approx(1e4, rel=1e-6)
    assert not found[0].index_fill(0, torch.tensor([20]), 0).any()
    assert found[1] == pytest.approx(torch.full((48,), 10.0), rel=0.1)


def test_weights_of_denormal_size_stay_finite_and_near():
    weight = random_weight(64, 64)
    near = dequantise(quantise(weight * 1e-38), torch.float32).double() / 1e-38
    assert distance(near, weight.double()) < 0.12
    tiny = dequantise(quantise(weight * 1e-44), torch.float32)  # its tensor scale would be below all fp32
    assert not tiny.any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_is_refused(value):
    weight = random_weight(4, 32)
    weight[2, 5] = value
    with pytest.raises(CheckpointError, match=r"\[4, 32\] holds NaN or infinity"):
        quantise(weight)


def test_a_row_that_is_not_whole_blocks_is_refused():
    with pytest.raises(ConfigError, match=r"\[4, 40\].* blocks of 16"):
        quantise(torch.ones(4, 40))
    with pytest.raises(ConfigError, match=r"40 input features.* blocks of 16"):
        NVFP4Linear(40, 16)


def test_working_in_small_chunks_changes_no_bit(monkeypatch):
    weight = random_weight(150, 96).to(torch.bfloat16)
    packed = quantise(weight)
    whole = dequantise(packed, torch.bfloat16)
    monkeypatch.setattr(nvfp4, "_CHUNK_VALUES", 7 * 96 + 5)
    assert same_packed(quantise(weight), packed)
    assert same_bits(dequantise(packed, torch.bfloat16), whole)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 128), (128, 256), (256, 300), (0, 300), (37, 211), (128, 200), (64, 128), (299, 300)]
)
def test_a_range_of_rows_is_that_range_of_the_weight(start, stop):
    packed = quantise(random_weight(300, 352))
    part = take_rows(packed, torch.arange(start, stop))
    assert (part.rows, part.columns) == (stop - start, 352)
    assert torch.equal(dequantise(part, torch.float32), dequantise(packed, torch.float32)[start:stop])
    assert is_padded_with_zeros(part)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 64), (64, 192), (128, 352), (0, 352), (16, 80), (48, 64), (64, 176), (336, 352)]
)
def test_a_slice_of_columns_is_that_slice_of_the_weight(start, stop):
    packed = quantise(random_weight(300, 352))
    part = take_columns(packed, slice(start, stop))
    assert (part.rows, part.columns) == (300, stop - start)
    assert torch.equal(dequantise(part, torch.float32), dequantise(packed, torch.float32)[:, start:stop])
    assert part.codes.is_contiguous()
    assert part.scales.is_contiguous()
    assert is_padded_with_zeros(part)


@pytest.mark.parametrize("columns", [slice(8, 64), slice(0, 40)])
def test_a_slice_of_columns_that_splits_a_block_is_refused(columns):
    """Of the codes and of the scales, which are cut one without the other."""
    packed = quantise(random_weight(4, 64))
    told = f"columns {columns.start} to {columns.stop} of 64 split a block of 16 values"
    with pytest.raises(ConfigError, match=told):
        slice_code_columns(packed.codes, columns)
    with pytest.raises(ConfigError, match=told):
        slice_scale_columns(packed.scales, columns)


def test_reordering_rows_moves_codes_and_scales_together():
    packed = quantise(random_weight(300, 80))
    order = torch.randperm(300, generator=torch.Generator().manual_seed(2))
    assert torch.equal(dequantise(take_rows(packed, order), torch.float32), dequantise(packed, torch.float32)[order])


@pytest.mark.parametrize(("dtype", "gate"), [(torch.bfloat16, BF16_GATE), (torch.float32, FP32_GATE)])
@pytest.mark.parametrize("has_pre_scale", [False, True])
@torch.inference_mode()
def test_a_layer_is_the_fp64_product_within_its_dtype(dtype, gate, has_pre_scale):
    layer = random_layer(352, 200, has_pre_scale)
    x = random_input(352, dtype, 3, 5)
    scaled = x.double() * (layer.pre_quant_scale.double() if has_pre_scale else 1)
    found = layer(x)
    assert found.dtype == dtype
    assert distance(found, scaled @ weight_by_hand(layer.packed).T) <= gate


@pytest.mark.parametrize("mistake", ["swapped nibbles", "row-major scales", "no pre-scale", "no tensor scale"])
@torch.inference_mode()
def test_the_gate_sees_each_mistake_ten_times_over(mistake):
    layer = random_layer(352, 200, has_pre_scale=True)
    packed = layer.packed
    weight = {
        "swapped nibbles": lambda: weight_by_hand(packed, even_shift=0),
        "row-major scales": lambda: weight_by_hand(packed, offset=lambda row, column, columns: row * 24 + column),
        "no pre-scale": lambda: weight_by_hand(packed) / layer.pre_quant_scale.double(),
        "no tensor scale": lambda: weight_by_hand(packed) / packed.scale.double(),
    }[mistake]()
    x = random_input(352, torch.bfloat16, 30)
    assert distance(layer(x), (x.double() * layer.pre_quant_scale.double()) @ weight.T) >= 10 * BF16_GATE


@pytest.mark.parametrize("pre_dtype", [torch.bfloat16, torch.float32])
@torch.inference_mode()
def test_the_pre_scale_is_applied_in_the_dtype_of_the_activation(pre_dtype):
    layer, plain = random_layer(64, 48, has_pre_scale=True), random_layer(64, 48)
    layer.pre_quant_scale = torch.linspace(0.3, 3, 64).to(pre_dtype)
    x = random_input(64, torch.bfloat16, 7)
    scaled = (x.double() * layer.pre_quant_scale.double()).float().to(torch.bfloat16)
    assert torch.equal(layer(x), plain(scaled))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("has_pre_scale", [False, True])
@torch.inference_mode()
def test_a_layer_gives_the_bits_of_its_dequantised_weight(dtype, has_pre_scale):
    layers = [random_layer(*size, has_pre_scale) for size in [(352, 200), (64, 48), (352, 208)]]  # of one scratch
    for layer in layers:
        x = random_input(layer.in_features, dtype, 3, 5)
        scaled = (x * layer.pre_quant_scale).to(dtype) if has_pre_scale else x
        assert same_bits(layer(x), F.linear(scaled, dequantise(layer.packed, dtype)))


@torch.inference_mode()
def test_a_layer_whose_scale_is_written_anew_takes_it():
    layer, x = random_layer(64, 48), random_input(64, torch.bfloat16, 5)
    before = layer(x)
    layer.load_state_dict({**layer.state_dict(), "weight_scale_2": 2 * layer.weight_scale_2})
    assert same_bits(layer(x), 2 * before)


@torch.inference_mode()
def test_a_zero_layer_gives_zeros_also_for_no_rows():
    layer, packed = NVFP4Linear(32, 16), quantise(torch.zeros(16, 32))
    layer.load_state_dict({"weight": packed.codes, "weight_scale": packed.scales, "weight_scale_2": packed.scale})
    assert not layer(torch.ones(4, 32, dtype=torch.bfloat16)).any()
    assert layer(torch.ones(0, 32, dtype=torch.bfloat16)).shape == (0, 16)


def test_the_state_of_a_layer_has_the_keys_and_forms_of_the_file():
    forms = {name: (list(value.shape), value.dtype) for name, value in NVFP4Linear(352, 200, True).state_dict().items()}
    assert forms == {
        "weight": ([200, 176], torch.uint8),
        "weight_scale": ([256, 24], torch.float8_e4m3fn),
        "weight_scale_2": ([], torch.float32),
        "pre_quant_scale": ([352], torch.bfloat16),
    }
    assert list(NVFP4Linear(352, 200).state_dict()) == ["weight", "weight_scale", "weight_scale_2"]


def test_a_layer_is_made_without_memory_on_the_meta_device():
    with torch.device("meta"):
        layer = NVFP4Linear(5376, 28672, has_pre_scale=True)
    assert all(value.is_meta for value in layer.state_dict().values())
    assert layer.weight_scale.shape == (28672, 336)


@torch.inference_mode()
def test_a_layer_whose_scales_were_converted_says_so():
    layer = random_layer(64, 48).to(torch.bfloat16)
    with pytest.raises(AssertionError, match=r"to\(dtype\) has converted the scales"):
        layer(random_input(64, torch.bfloat16, 2))


def test_the_scratch_is_one_buffer_that_grows_and_is_kept():
    scratch = Scratch()
    with torch.inference_mode():
        small = scratch.take(4, 32, CPU, torch.bfloat16)
        large = scratch.take(8, 32, CPU, torch.bfloat16)
    again = scratch.take(4, 32, CPU, torch.bfloat16)
    again.fill_(1)  # also outside inference mode
    assert (small.shape, large.shape) == ((4, 32), (8, 32))
    assert again.data_ptr() == large.data_ptr()
    assert scratch.take(4, 32, CPU, torch.float32).dtype == torch.float32


def scaled_mm(a, b, scale_a, scale_b, out_dtype, offset=scale_offset):
    """torch._scaled_mm on two FP4 operands, as the hardware has it: low nibble first, swizzled scales."""
    assert a.dtype == b.dtype == torch.float4_e2m1fn_x2
    assert a.shape[0] % 16 == b.shape[1] % 16 == 0
    assert a.shape[1] % 16 == 0
    one = torch.tensor(1.0)
    left = weight_by_hand(PackedWeight(a.view(torch.uint8), scale_a, one), even_shift=0, offset=offset)
    right = weight_by_hand(PackedWeight(b.t().view(torch.uint8), scale_b, one), even_shift=0, offset=offset)
    return (left @ right.T).to(out_dtype)


@pytest.fixture
def fresh_probe():
    probe_fp4.cache_clear()
    yield
    probe_fp4.cache_clear()


@pytest.fixture
def native_fp4(fresh_probe, monkeypatch):
    """A device that multiplies FP4."""
    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)


def test_a_device_without_fp4_products_is_found_out_once_and_the_reason_logged(fresh_probe, caplog):
    with caplog.at_level(logging.INFO, "h3.nvfp4"):
        assert not probe_fp4(CPU)
        assert not probe_fp4(CPU)
    (record,) = caplog.records
    assert re.search(r"on cpu, which does not multiply them natively: \w+Error: ", record.getMessage())


def test_a_torch_without_the_dtype_has_no_fp4_products(fresh_probe, caplog, monkeypatch):
    monkeypatch.delattr(torch, "float4_e2m1fn_x2")
    with caplog.at_level(logging.INFO, "h3.nvfp4"):
        assert not probe_fp4(CPU)
    assert "no float4_e2m1fn_x2" in caplog.text


def test_a_device_whose_fp4_products_are_wrong_is_not_trusted(native_fp4, caplog, monkeypatch):
    def wrong(*args, **kwargs):
        return scaled_mm(*args, **kwargs, offset=lambda row, column, columns: row * columns + column)

    monkeypatch.setattr(torch, "_scaled_mm", wrong)
    with caplog.at_level(logging.INFO, "h3.nvfp4"):
        assert not probe_fp4(CPU)
    assert "off by" in caplog.text


@torch.inference_mode()
def test_where_fp4_products_are_right_both_operands_are_quantised(native_fp4):
    layer = random_layer(352, 208, has_pre_scale=True)
    layer.is_native = True
    x = random_input(352, torch.bfloat16, 3, 7)  # 21 rows: neither 16 nor 32
    scaled = (x * layer.pre_quant_scale).flatten(0, 1)
    expected = weight_by_hand(quantise(scaled)) @ weight_by_hand(layer.packed).T
    assert probe_fp4(CPU)
    assert layer(x).shape == (3, 7, 208)
    assert distance(layer(x).flatten(0, 1), expected) <= BF16_GATE
    assert distance(layer(x).flatten(0, 1), scaled.double() @ weight_by_hand(layer.packed).T) > 10 * BF16_GATE


@pytest.mark.parametrize(
    ("inputs", "outputs", "full_precision", "dtype", "rows"),
    [
        (352, 208, True, torch.bfloat16, 5),
        (352, 208, False, torch.float32, 5),
        (48, 208, False, torch.bfloat16, 5),
        (352, 200, False, torch.bfloat16, 5),
        (352, 208, False, torch.bfloat16, 0),
    ],
    ids=["marked", "fp32", "columns do not fit", "rows do not fit", "no activation"],
)
@torch.inference_mode()
def test_a_layer_stays_out_of_fp4_where_it_must(native_fp4, inputs, outputs, full_precision, dtype, rows):
    layer = random_layer(inputs, outputs, full_precision=full_precision)
    layer.is_native = True
    x = random_input(inputs, dtype, rows)
    found = layer(x)
    assert found.shape == (rows, outputs)
    assert same_bits(found, F.linear(x, dequantise(layer.packed, dtype)))
