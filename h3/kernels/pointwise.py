"""What a block does between its products, on the GPU: each function reads its inputs once and writes its result once.

Twins of those in `h3.pointwise`, which say what is computed; a program has one row of the sequence. All arithmetic is
in fp32 and rounded once, where the eager model rounds after each operation; sums are made in a fixed order, so the
same rows give the same bits.
"""

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from h3.model import Rope
from h3.pointwise import Modulated

VECTORS = 6  # of a modulation: shift, scale, gate of attention and of the MLP
_SWIGLU_COLUMNS = 2048  # of a program
_HEADS = 32  # likewise


def norm_modulate(x: Tensor, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int) -> Tensor:
    out = torch.empty_like(x)
    with torch.cuda.device(x.device):  # Triton launches on the current device, wherever the tensors are
        _norm_modulate[(x.shape[0],)](
            x,
            weight,
            modulated.table,
            modulated.places,
            out,
            x.shape[1],
            eps,
            shift,
            scale,
            VECTORS,
            _power(x.shape[1]),
            num_warps=4,
        )
    return out


def add_norm_modulate(
    x: Tensor, hidden: Tensor, gate: int, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int
) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x)
    assert hidden.is_contiguous()
    with torch.cuda.device(x.device):
        _add_norm_modulate[(x.shape[0],)](
            x,
            hidden,
            weight,
            modulated.table,
            modulated.places,
            out,
            x.shape[1],
            eps,
            gate,
            shift,
            scale,
            VECTORS,
            _power(x.shape[1]),
            num_warps=4,
        )
    return hidden, out


def add_gated(x: Tensor, hidden: Tensor, gate: int, modulated: Modulated) -> Tensor:
    assert hidden.is_contiguous()
    with torch.cuda.device(x.device):
        _add_gated[(x.shape[0],)](
            x, hidden, modulated.table, modulated.places, x.shape[1], gate, VECTORS, _power(x.shape[1]), num_warps=4
        )
    return hidden


def norm_rotate(qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, rope: Rope) -> Tensor:
    rows, _, heads, head_dim = qkv.shape
    assert qkv.is_contiguous()
    half = rope.cos.shape[1]
    large = _power(half + 1) // 2  # 48 channels are 32 and 16: Triton knows powers of two alone, and masks are slow
    with torch.cuda.device(qkv.device):
        _norm_rotate[(rows, 2, triton.cdiv(heads, _HEADS))](
            qkv,
            q_weight,
            k_weight,
            rope.cos,
            rope.sin,
            eps,
            heads,
            head_dim,
            half,
            _HEADS,
            large,
            _power(max(half - large, 1)),
            _power(max(head_dim - 2 * half, 1)),
            num_warps=4,
        )
    return qkv


def swiglu(hidden: Tensor) -> Tensor:
    rows, width = hidden.shape
    assert hidden.is_contiguous()
    half = width // 2
    with torch.cuda.device(hidden.device):
        _swiglu[(rows, triton.cdiv(half, _SWIGLU_COLUMNS))](hidden, half, _SWIGLU_COLUMNS)
    return hidden[:, :half]


def _power(size: int) -> int:
    return int(triton.next_power_of_2(size))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def modulate(values, inverse, weight, base, columns, at, exists, shift: tl.constexpr, scale: tl.constexpr):  # type: ignore[no-untyped-def]
    normed = values * inverse * tl.load(weight + at, mask=exists, other=0.0).to(tl.float32)
    factor = 1.0 + tl.load(base + scale * columns + at, mask=exists, other=0.0).to(tl.float32)
    return normed * factor + tl.load(base + shift * columns + at, mask=exists, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def add(x, hidden, row, base, columns, at, exists, gate: tl.constexpr):  # type: ignore[no-untyped-def]
    added = tl.load(hidden + row * columns + at, mask=exists, other=0.0).to(tl.float32)
    added = added * tl.load(base + gate * columns + at, mask=exists, other=0.0).to(tl.float32)
    total = tl.load(x + row * columns + at, mask=exists, other=0.0).to(tl.float32) + added
    return total.to(hidden.dtype.element_ty)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _norm_modulate(  # type: ignore[no-untyped-def]
    x,
    weight,
    table,
    places,
    out,
    columns,
    eps,
    shift: tl.constexpr,
    scale: tl.constexpr,
    vectors: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    exists = at < columns
    values = tl.load(x + row * columns + at, mask=exists, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values) / columns + eps)
    base = table + tl.load(places + row).to(tl.int64) * vectors * columns
    result = modulate(values, inverse, weight, base, columns, at, exists, shift, scale)
    tl.store(out + row * columns + at, result.to(out.dtype.element_ty), mask=exists)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm_modulate(  # type: ignore[no-untyped-def]
    x,
    hidden,
    weight,
    table,
    places,
    out,
    columns,
    eps,
    gate: tl.constexpr,
    shift: tl.constexpr,
    scale: tl.constexpr,
    vectors: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    exists = at < columns
    base = table + tl.load(places + row).to(tl.int64) * vectors * columns
    total = add(x, hidden, row, base, columns, at, exists, gate)
    tl.store(hidden + row * columns + at, total, mask=exists)
    values = total.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values) / columns + eps)
    result = modulate(values, inverse, weight, base, columns, at, exists, shift, scale)
    tl.store(out + row * columns + at, result.to(out.dtype.element_ty), mask=exists)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_gated(  # type: ignore[no-untyped-def]
    x, hidden, table, places, columns, gate: tl.constexpr, vectors: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    exists = at < columns
    base = table + tl.load(places + row).to(tl.int64) * vectors * columns
    total = add(x, hidden, row, base, columns, at, exists, gate)
    tl.store(hidden + row * columns + at, total, mask=exists)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _norm_rotate(  # type: ignore[no-untyped-def]
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    eps,
    heads,
    head_dim: tl.constexpr,
    half: tl.constexpr,
    head_block: tl.constexpr,
    large_block: tl.constexpr,
    small_block: tl.constexpr,
    rest_block: tl.constexpr,
):
    """Of one row, some heads of q or k. Channels j and j + half share a thread: what was written is never read."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    weight = q_weight if part == 0 else k_weight
    head = (tl.program_id(2) * head_block + tl.arange(0, head_block))[:, None]
    base = qkv + (row * 3 + part) * heads * head_dim + head * head_dim
    is_head = head < heads
    # The angles of a row are `half`: some in a large block, the others in a small one. The rest of a head stays.
    large = tl.arange(0, large_block)[None, :]
    small = large_block + tl.arange(0, small_block)[None, :]
    rest = 2 * half + tl.arange(0, rest_block)[None, :]
    first, second = _load_pair(base, large, half, is_head)
    other_first, other_second = _load_pair(base, small, half, is_head & (small < half))
    still = tl.load(base + rest, mask=is_head & (rest < head_dim), other=0.0).to(tl.float32)
    squares = tl.sum(first * first + second * second, axis=1) + tl.sum(still * still, axis=1)
    squares += tl.sum(other_first * other_first + other_second * other_second, axis=1)
    inverse = tl.rsqrt(squares / head_dim + eps)[:, None]
    _store_pair(base, weight, cos, sin, row, large, half, is_head, first * inverse, second * inverse)
    _store_pair(
        base,
        weight,
        cos,
        sin,
        row,
        small,
        half,
        is_head & (small < half),
        other_first * inverse,
        other_second * inverse,
    )
    still *= inverse * tl.load(weight + rest, mask=rest < head_dim, other=0.0).to(tl.float32)
    tl.store(base + rest, still.to(qkv.dtype.element_ty), mask=is_head & (rest < head_dim))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _load_pair(base, at, half: tl.constexpr, exists):  # type: ignore[no-untyped-def]
    first = tl.load(base + at, mask=exists, other=0.0).to(tl.float32)
    return first, tl.load(base + half + at, mask=exists, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _store_pair(base, weight, cos, sin, row, at, half: tl.constexpr, exists, first, second):  # type: ignore[no-untyped-def]
    first *= tl.load(weight + at, mask=at < half, other=0.0).to(tl.float32)
    second *= tl.load(weight + half + at, mask=at < half, other=0.0).to(tl.float32)
    c = tl.load(cos + row * half + at, mask=at < half, other=0.0).to(tl.float32)
    s = tl.load(sin + row * half + at, mask=at < half, other=0.0).to(tl.float32)
    kind = base.dtype.element_ty
    tl.store(base + at, (first * c - second * s).to(kind), mask=exists)
    tl.store(base + half + at, (second * c + first * s).to(kind), mask=exists)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _swiglu(hidden, half, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    exists = at < half
    gate = tl.load(hidden + row * 2 * half + at, mask=exists, other=0.0).to(tl.float32)
    value = tl.load(hidden + row * 2 * half + half + at, mask=exists, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * value
    tl.store(hidden + row * 2 * half + at, result.to(hidden.dtype.element_ty), mask=exists)
