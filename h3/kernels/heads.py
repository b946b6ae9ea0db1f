"""Heads rounded to e4m3 on the GPU: twins of `h3.fp8.round_heads` and of `h3.rounding.norm_rotate_round`.

A scale is of all tokens. Where it must be searched for, that is a pass of its own before the one that rounds. Largest
values are compared as the bits of fp32, which for what is not negative come in the same order. So the atomic operation
is one of integers, and it does not matter which program comes first.
"""

import math

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from h3.fp8 import FP8, RoundedHeads, RoundedQKV
from h3.kernels.scale import find_scale
from h3.model import Rope

_ROWS = 64  # of a program, of one head
# Of a program that rotates heads of one row: channels of a unit, at most; heads at once; how often, at most. It is one
# warp, which loads what heads share once: with eight heads, more warps and one turn 0.40 ms for 0.21 (17,780 tokens).
_UNIT, _HEADS, _TURNS = 16, 4, 14


def norm_rotate_round(qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, rope: Rope) -> RoundedQKV:
    rows, _, heads, head_dim = qkv.shape
    half = rope.cos.shape[1]
    assert qkv.is_contiguous()
    values = torch.empty(2, rows, heads, head_dim, dtype=FP8, device=qkv.device)
    scales = torch.empty(2, heads, dtype=torch.float32, device=qkv.device)
    unit, turns = math.gcd(half, head_dim, _UNIT), min(triton.cdiv(heads, _HEADS), _TURNS)
    with torch.cuda.device(qkv.device):  # Triton launches on the current device, wherever the tensors are
        _norm_rotate_round[(rows, 2, triton.cdiv(heads, _HEADS * turns))](
            qkv,
            q_weight,
            k_weight,
            rope.cos,
            rope.sin,
            values,
            scales,
            eps,
            rows,
            heads,
            math.sqrt(head_dim),
            head_dim,
            half // unit,
            unit,
            int(triton.next_power_of_2(head_dim // unit)),
            _HEADS,
            turns,
            num_warps=1,
        )
    q, k = map(RoundedHeads, values, scales)
    return RoundedQKV(q, k, round_heads(qkv[:, 2]))


def round_heads(x: Tensor) -> RoundedHeads:
    rows, heads, head_dim = x.shape
    assert x.stride(2) == 1
    out = torch.empty(x.shape, dtype=FP8, device=x.device)
    scale = torch.empty(heads, dtype=torch.float32, device=x.device)
    largest = torch.zeros(heads, dtype=torch.int32, device=x.device)
    grid = (heads, triton.cdiv(rows, _ROWS))  # heads first: those of a row lie together, and are moved together
    sizes = (rows, heads, x.stride(0), x.stride(1), head_dim, int(triton.next_power_of_2(head_dim)), _ROWS)
    with torch.cuda.device(x.device):
        _find_largest[grid](x, largest, *sizes)
        _round_heads[grid](x, largest, out, scale, *sizes)
    return RoundedHeads(out, scale)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _norm_rotate_round(  # type: ignore[no-untyped-def]
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    out,
    scales,
    eps,
    rows,
    heads,
    root: tl.constexpr,
    head_dim: tl.constexpr,
    rotated: tl.constexpr,
    unit: tl.constexpr,
    units: tl.constexpr,
    head_block: tl.constexpr,
    turns: tl.constexpr,
):
    """Of one row, some heads of q or k: [heads, units, channels of a unit].

    Of a head's units, the first `rotated` are paired with as many after them, the rest stay. The pair of each is loaded
    as well, which its neighbours' loads bring into the cache: nothing has to pass from thread to thread but the norm.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    weight = q_weight if part == 0 else k_weight
    at = tl.arange(0, units)[None, :, None]
    within = tl.arange(0, unit)[None, None, :]
    pair = tl.where(at < rotated, at + rotated, tl.where(at < 2 * rotated, at - rotated, at)) * unit + within
    channel = at * unit + within
    exists = channel < head_dim
    own = tl.load(weight + channel, mask=exists, other=0.0).to(tl.float32)
    other = tl.load(weight + pair, mask=exists, other=0.0).to(tl.float32)
    scale = find_scale(tl.max(tl.abs(own)) * root)  # of heads whose norm is `root` before they are weighted
    inverse = tl.div_rn(1.0, scale)
    angle = row * rotated * unit + tl.where(at < rotated, at, at - rotated) * unit + within
    is_rotated = exists & (at < 2 * rotated)
    sine = tl.load(sin + angle, mask=is_rotated, other=0.0).to(tl.float32)
    other *= tl.where(at < rotated, -sine, sine) * inverse
    own *= tl.load(cos + angle, mask=is_rotated, other=1.0).to(tl.float32) * inverse
    for turn in tl.static_range(turns):
        head = ((tl.program_id(2) * turns + turn) * head_block + tl.arange(0, head_block))[:, None, None]
        mask = (head < heads) & exists
        base = qkv + (row * 3 + part) * heads * head_dim + head * head_dim
        values = tl.load(base + channel, mask=mask, other=0.0).to(tl.float32)
        pairs = tl.load(base + pair, mask=mask, other=0.0).to(tl.float32)
        squares = tl.sum(tl.sum(values * values, axis=2), axis=1)[:, None, None]
        rounded = (values * own + pairs * other) * tl.rsqrt(squares / head_dim + eps)
        base = out + (part * rows + row) * heads * head_dim + head * head_dim
        tl.store(base + channel, rounded.to(out.dtype.element_ty), mask=mask)
        tl.store(scales + part * heads + head, scale, mask=(head < heads) & (row == 0))


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
