"""Heads rounded to e4m3 on the GPU: the twin of `h3.fp8.round_heads`, in two passes, for a scale is of all tokens.

Largest values are compared as the bits of fp32, which for what is not negative come in the same order. So the atomic
operation is one of integers, and it does not matter which program comes first.
"""

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from h3.fp8 import FP8
from h3.kernels.rounding import find_scale

_ROWS = 64  # of a program, of one head


def round_heads(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, heads, head_dim = x.shape
    assert x.stride(2) == 1
    out = torch.empty(x.shape, dtype=FP8, device=x.device)
    scale = torch.empty(heads, dtype=torch.float32, device=x.device)
    largest = torch.zeros(heads, dtype=torch.int32, device=x.device)
    grid = (heads, triton.cdiv(rows, _ROWS))  # heads first: those of a row lie together, and are moved together
    sizes = (rows, heads, x.stride(0), x.stride(1), head_dim, int(triton.next_power_of_2(head_dim)), _ROWS)
    with torch.cuda.device(x.device):  # Triton launches on the current device, wherever the tensors are
        _find_largest[grid](x, largest, *sizes)
        _round_heads[grid](x, largest, out, scale, *sizes)
    return out, scale


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _find_largest(  # type: ignore[no-untyped-def]
    x,
    largest,
    rows,
    heads,
    row_stride,
    head_stride,
    head_dim: tl.constexpr,
    columns: tl.constexpr,
    row_block: tl.constexpr,
):
    head = tl.program_id(0)
    row, column, exists = _tile(tl.program_id(1), rows, head_dim, columns, row_block)
    values = tl.load(x + row * row_stride + head.to(tl.int64) * head_stride + column, mask=exists, other=0.0)
    bits = tl.max(tl.abs(values.to(tl.float32))).to(tl.int32, bitcast=True)
    tl.atomic_max(largest + head, bits, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _round_heads(  # type: ignore[no-untyped-def]
    x,
    largest,
    out,
    scales,
    rows,
    heads,
    row_stride,
    head_stride,
    head_dim: tl.constexpr,
    columns: tl.constexpr,
    row_block: tl.constexpr,
):
    head = tl.program_id(0)
    # From the end on: what the first pass has read last is still in the cache.
    place = tl.num_programs(1) - 1 - tl.program_id(1)
    row, column, exists = _tile(place, rows, head_dim, columns, row_block)
    scale = find_scale(tl.load(largest + head).to(tl.float32, bitcast=True))
    values = tl.load(x + row * row_stride + head.to(tl.int64) * head_stride + column, mask=exists, other=0.0)
    rounded = (values.to(tl.float32) * tl.div_rn(1.0, scale)).to(out.dtype.element_ty)
    tl.store(out + (row * heads + head) * head_dim + column, rounded, mask=exists)
    tl.store(scales + head, scale, mask=place == 0)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _tile(place, rows, head_dim: tl.constexpr, columns: tl.constexpr, row_block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a program's rows and columns are, and which exist. 64 bits: q, k and v may have more than 2^31 values."""
    row = place.to(tl.int64) * row_block + tl.arange(0, row_block)[:, None]
    column = tl.arange(0, columns)[None, :]
    return row, column, (row < rows) & (column < head_dim)
