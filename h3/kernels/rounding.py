"""What a block does between its products, rounded row by row to e4m3 on the GPU: inputs are read once, e4m3 is written.

Twins of those in `h3.rounding`, and of `h3.fp8.round_rows`, which say what is computed. What is rounded by a scale of
its own must be whole before it is written, so a program keeps its row in registers. It has it as three parts that are
powers of two, as Triton wants them: 5,376 channels are 4,096, 1,024 and 256, where one part would be 8,192 lanes.
"""

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from h3.fp8 import FP8, RoundedRows
from h3.kernels.heads import norm_rotate_round
from h3.kernels.pointwise import VECTORS, add, add_gated, modulate, norm_rotate
from h3.kernels.scale import find_scale
from h3.pointwise import Modulated

__all__ = [
    "add_gated",
    "add_norm_modulate",
    "norm_modulate",
    "norm_rotate",
    "norm_rotate_round",
    "round_rows",
    "swiglu",
]

_WIDE = 8192  # a row from here on has eight warps: with four, its values would not fit in their registers


def round_rows(x: Tensor) -> RoundedRows:
    assert x.stride(1) == 1
    rounded = _rows_like(x)
    with torch.cuda.device(x.device):  # Triton launches on the current device, wherever the tensors are
        _round_rows[(x.shape[0],)](x, *rounded, x.stride(0), **_shape_of_programs(x.shape[1]))
    return rounded


def norm_modulate(x: Tensor, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int) -> RoundedRows:
    assert x.is_contiguous()
    rounded = _rows_like(x)
    with torch.cuda.device(x.device):
        _norm_modulate[(x.shape[0],)](
            x,
            weight,
            modulated.table,
            modulated.places,
            *rounded,
            eps,
            shift,
            scale,
            VECTORS,
            **_shape_of_programs(x.shape[1]),
        )
    return rounded


def add_norm_modulate(
    x: Tensor, hidden: Tensor, gate: int, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int
) -> tuple[Tensor, RoundedRows]:
    assert x.is_contiguous()
    assert hidden.is_contiguous()
    rounded = _rows_like(x)
    with torch.cuda.device(x.device):
        _add_norm_modulate[(x.shape[0],)](
            x,
            hidden,
            weight,
            modulated.table,
            modulated.places,
            *rounded,
            eps,
            gate,
            shift,
            scale,
            VECTORS,
            **_shape_of_programs(x.shape[1]),
        )
    return hidden, rounded


def swiglu(hidden: Tensor) -> RoundedRows:
    assert hidden.is_contiguous()
    rounded = _rows_like(hidden[:, : hidden.shape[1] // 2])
    with torch.cuda.device(hidden.device):
        _swiglu[(hidden.shape[0],)](hidden, *rounded, **_shape_of_programs(hidden.shape[1] // 2))
    return rounded


def _rows_like(x: Tensor) -> RoundedRows:
    scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    return RoundedRows(torch.empty(x.shape, dtype=FP8, device=x.device), scale)


def _shape_of_programs(columns: int) -> dict[str, int]:
    """The parts of a row, and how many warps share it."""
    first = 1 << (columns.bit_length() - 1)
    second = 1 << (max(columns - first, 1).bit_length() - 1)
    third = int(triton.next_power_of_2(max(columns - first - second, 1)))
    warps = 8 if columns >= _WIDE else 4
    return {"columns": columns, "first": first, "second": second, "third": third, "num_warps": warps}


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _round_rows(  # type: ignore[no-untyped-def]
    x,
    out,
    scales,
    stride,
    columns: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    third: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    parts = _parts(first, second, third)
    _store_rounded(out, scales, row, columns, parts, _load(x + row * stride, columns, parts))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _norm_modulate(  # type: ignore[no-untyped-def]
    x,
    weight,
    table,
    places,
    out,
    scales,
    eps,
    shift: tl.constexpr,
    scale: tl.constexpr,
    vectors: tl.constexpr,
    columns: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    third: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = table + tl.load(places + row).to(tl.int64) * vectors * columns
    parts = _parts(first, second, third)
    normed = _norm(_load(x + row * columns, columns, parts), weight, base, eps, shift, scale, columns, parts)
    _store_rounded(out, scales, row, columns, parts, normed)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm_modulate(  # type: ignore[no-untyped-def]
    x,
    hidden,
    weight,
    table,
    places,
    out,
    scales,
    eps,
    gate: tl.constexpr,
    shift: tl.constexpr,
    scale: tl.constexpr,
    vectors: tl.constexpr,
    columns: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    third: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = table + tl.load(places + row).to(tl.int64) * vectors * columns
    parts = _parts(first, second, third)
    a = _add(x, hidden, row, base, gate, columns, parts[0])
    b = _add(x, hidden, row, base, gate, columns, parts[1])
    c = _add(x, hidden, row, base, gate, columns, parts[2])
    normed = _norm((a, b, c), weight, base, eps, shift, scale, columns, parts)
    _store_rounded(out, scales, row, columns, parts, normed)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _swiglu(  # type: ignore[no-untyped-def]
    hidden,
    out,
    scales,
    columns: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    third: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    parts = _parts(first, second, third)
    gate = hidden + row * 2 * columns
    a = _swiglu_part(gate, columns, parts[0])
    b = _swiglu_part(gate, columns, parts[1])
    c = _swiglu_part(gate, columns, parts[2])
    _store_rounded(out, scales, row, columns, parts, (a, b, c))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _parts(first: tl.constexpr, second: tl.constexpr, third: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each part's columns in a row. What is past its end is masked."""
    return tl.arange(0, first), first + tl.arange(0, second), first + second + tl.arange(0, third)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _load(row, columns: tl.constexpr, parts):  # type: ignore[no-untyped-def]
    a = tl.load(row + parts[0], mask=parts[0] < columns, other=0.0).to(tl.float32)
    b = tl.load(row + parts[1], mask=parts[1] < columns, other=0.0).to(tl.float32)
    c = tl.load(row + parts[2], mask=parts[2] < columns, other=0.0).to(tl.float32)
    return a, b, c


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _norm(values, weight, base, eps, shift: tl.constexpr, scale: tl.constexpr, columns: tl.constexpr, parts):  # type: ignore[no-untyped-def]
    squares = tl.sum(values[0] * values[0]) + tl.sum(values[1] * values[1]) + tl.sum(values[2] * values[2])
    inverse = tl.rsqrt(squares / columns + eps)
    a = modulate(values[0], inverse, weight, base, columns, parts[0], parts[0] < columns, shift, scale)
    b = modulate(values[1], inverse, weight, base, columns, parts[1], parts[1] < columns, shift, scale)
    c = modulate(values[2], inverse, weight, base, columns, parts[2], parts[2] < columns, shift, scale)
    return a, b, c


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add(x, hidden, row, base, gate: tl.constexpr, columns: tl.constexpr, at):  # type: ignore[no-untyped-def]
    """The new stream of some columns, written, and as fp32."""
    total = add(x, hidden, row, base, columns, at, at < columns, gate)
    tl.store(hidden + row * columns + at, total, mask=at < columns)
    return total.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _swiglu_part(gates, columns: tl.constexpr, at):  # type: ignore[no-untyped-def]
    gate = tl.load(gates + at, mask=at < columns, other=0.0).to(tl.float32)
    value = tl.load(gates + columns + at, mask=at < columns, other=0.0).to(tl.float32)
    return gate / (1.0 + tl.exp(-gate)) * value


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _store_rounded(out, scales, row, columns: tl.constexpr, parts, values):  # type: ignore[no-untyped-def]
    largest = tl.maximum(tl.max(tl.abs(values[0])), tl.max(tl.abs(values[1])))
    largest = tl.maximum(largest, tl.max(tl.abs(values[2])))
    scale = find_scale(largest)
    inverse = tl.div_rn(1.0, scale)
    kind = out.dtype.element_ty
    base = out + row * columns
    tl.store(scales + row, scale)
    tl.store(base + parts[0], (values[0] * inverse).to(kind), mask=parts[0] < columns)
    tl.store(base + parts[1], (values[1] * inverse).to(kind), mask=parts[1] < columns)
    tl.store(base + parts[2], (values[2] * inverse).to(kind), mask=parts[2] < columns)
