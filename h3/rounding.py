"""`h3.pointwise` for blocks whose layers take rounded rows: what a layer reads is rounded from fp32 to e4m3, once.

So it is neither written in bf16 nor read again, and has one rounding less. The stream of a block stays as it is, and
so do q, k and v, unless attention reads them in FP8. These are the eager twins of `h3.kernels.rounding`.
"""

import math

from torch import Tensor

from h3.fp8 import RoundedHeads, RoundedQKV, RoundedRows, round_heads, round_heads_by, round_rows
from h3.model import Rope
from h3.pointwise import Modulated, add_gated, norm_modulate_fp32, norm_rotate, norm_rotate_fp32, swiglu_fp32

__all__ = [
    "add_gated",
    "add_norm_modulate",
    "norm_modulate",
    "norm_rotate",
    "norm_rotate_round",
    "round_rows",
    "swiglu",
]


def norm_modulate(x: Tensor, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int) -> RoundedRows:
    return round_rows(norm_modulate_fp32(x, weight, eps, modulated, shift, scale))


def add_norm_modulate(
    x: Tensor, hidden: Tensor, gate: int, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int
) -> tuple[Tensor, RoundedRows]:
    total = add_gated(x, hidden, gate, modulated)
    return total, norm_modulate(total, weight, eps, modulated, shift, scale)


def norm_rotate_round(qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, rope: Rope) -> RoundedQKV:
    """`norm_rotate`, each head rounded by one scale for all tokens. [T, 3, H, D], left as it is

    That of q and k is known before any token is: a head's norm is sqrt(D) before it is weighted, and a rotation keeps
    that of a pair, so no value is above sqrt(D) times the largest weight. That is some three times what a model's heads
    come to, which costs e4m3 nothing: down to 2^-14 of the largest, its relative error is the same. v has no norm, so
    its heads are searched for their largest.
    """
    q, k, v = qkv.unbind(1)
    return RoundedQKV(
        _round_rotated(q, q_weight, eps, rope),
        _round_rotated(k, k_weight, eps, rope),
        round_heads(v),
    )


def _round_rotated(heads: Tensor, weight: Tensor, eps: float, rope: Rope) -> RoundedHeads:
    largest = weight.float().abs().amax() * math.sqrt(heads.shape[-1])
    return round_heads_by(norm_rotate_fp32(heads, weight, eps, rope), largest)


def swiglu(hidden: Tensor) -> RoundedRows:
    return round_rows(swiglu_fp32(hidden))
