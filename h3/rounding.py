"""`h3.pointwise` for blocks whose layers take rounded rows: what a layer reads is rounded from fp32 to e4m3, once.

So it is neither written in bf16 nor read again, and has one rounding less. The stream of a block, and q, k and v, stay
as they are. These are the eager twins of `h3.kernels.rounding`.
"""

from torch import Tensor

from h3.fp8 import RoundedRows, round_rows
from h3.pointwise import Modulated, add_gated, norm_modulate_fp32, norm_rotate, swiglu_fp32

__all__ = ["add_gated", "add_norm_modulate", "norm_modulate", "norm_rotate", "round_rows", "swiglu"]


def norm_modulate(x: Tensor, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int) -> RoundedRows:
    return round_rows(norm_modulate_fp32(x, weight, eps, modulated, shift, scale))


def add_norm_modulate(
    x: Tensor, hidden: Tensor, gate: int, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int
) -> tuple[Tensor, RoundedRows]:
    total = add_gated(x, hidden, gate, modulated)
    return total, norm_modulate(total, weight, eps, modulated, shift, scale)


def swiglu(hidden: Tensor) -> RoundedRows:
    return round_rows(swiglu_fp32(hidden))
