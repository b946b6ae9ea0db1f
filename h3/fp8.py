"""FP8 products (W8A8) in the blocks' linear layers: opt-in, for it rounds weights and activations to three bits.

Weights are rounded once, at load, each row by a scale of its own; activations at each call, each row likewise. With
the scales outside, what is multiplied are e4m3 values, whose products the tensor cores sum in fp32. A GPU multiplies
them natively where a probe at start finds it right; elsewhere the rounded values are widened and multiplied in the
activation's dtype: the same result up to its roundings, and no faster than bf16.
Source: row-wise scaled matrix products, as in torch's scaled_mm.
"""

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from h3.native import is_right

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # what is below has no finite reciprocal
_TOLERANCE = 1e-2  # of the probe, relative L2; a wrong layout is off by about 1
_MULTIPLE = 16  # both sides of a weight, for a native product

log = logging.getLogger(__name__)


class RoundedRows(NamedTuple):
    """Rows as e4m3, times a scale of each."""

    values: Tensor  # [M, K] e4m3
    scale: Tensor  # [M, 1] fp32

    def widen(self) -> Tensor:
        """fp32."""
        return self.values.float() * self.scale


Rows = Tensor | RoundedRows
"""What a linear layer of a block may be given."""


class RoundedHeads(NamedTuple):
    """One of q, k and v as e4m3, times a scale of each head."""

    values: Tensor  # [T, H, D] e4m3, contiguous
    scale: Tensor  # [H] fp32

    def widen(self) -> Tensor:
        """fp32."""
        return self.values.float() * self.scale[:, None]


class RoundedQKV(NamedTuple):
    """What attention in FP8 reads."""

    q: RoundedHeads
    k: RoundedHeads
    v: RoundedHeads


def round_rows(x: Tensor) -> RoundedRows:
    """Of [M, K], whose rows may lie apart. The twin of `h3.kernels.rounding.round_rows`, bit for bit."""
    return RoundedRows(*_round(x, x.abs().amax(dim=1, keepdim=True)))


def round_heads(x: Tensor) -> RoundedHeads:
    """Of [T, H, D], each head by the largest of all its tokens. Likewise a twin, bit for bit."""
    return round_heads_by(x, x.abs().amax(dim=(0, 2)))


def round_heads_by(x: Tensor, largest: Tensor) -> RoundedHeads:
    """By what is known to be no less than a head's largest absolute value: [H], or one for all."""
    values, scale = _round(x, largest.expand(x.shape[1])[:, None])
    return RoundedHeads(values.contiguous(), scale.flatten())


def _round(x: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """As e4m3 times a scale, given the largest absolute value of whatever shares one. Zeros have the smallest scale."""
    scale = (largest.float() * (1 / LARGEST)).clamp(min=SMALLEST_SCALE)
    # By the reciprocal: to divide each value would take a kernel longer than to move it.
    return (x.float() * scale.reciprocal()).to(FP8), scale


class FP8Linear(nn.Module):
    """x W^T with both rounded to e4m3, row by row; no bias, inference only."""

    weight: Tensor  # [N, K] e4m3
    weight_scale: Tensor  # [N, 1] fp32

    def __init__(self, weight: Tensor) -> None:
        """weight [N, K] bf16"""
        super().__init__()
        values, scale = round_rows(weight)
        self.dtype = weight.dtype  # of the model
        self.is_native = False  # whether to multiply in FP8; decided at start, for all ranks alike
        self.round_rows: Callable[[Tensor], RoundedRows] = round_rows  # or its twin on the GPU; likewise
        self.register_buffer("weight", values)
        self.register_buffer("weight_scale", scale)

    def forward(self, x: Rows) -> Tensor:
        """x [..., K] bf16, or rows that are rounded already. Returns [..., N]."""
        if isinstance(x, RoundedRows):
            return self._multiply(x)
        return self._multiply(self.round_rows(x.flatten(0, -2))).view(*x.shape[:-1], -1)

    def _multiply(self, x: RoundedRows) -> Tensor:
        """[M, K] to [M, N]."""
        if self._multiplies_in_fp8():
            return multiply_fp8(*x, self.weight, self.weight_scale)
        out = F.linear(x.values.to(self.dtype), self.weight.to(self.dtype)).float()
        return (out * x.scale * self.weight_scale.T).to(self.dtype)

    def _multiplies_in_fp8(self) -> bool:
        fits = all(size % _MULTIPLE == 0 for size in self.weight.shape)
        return self.is_native and fits and self.dtype == torch.bfloat16


def multiply_fp8(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """e4m3 [M, K] and [N, K] to bf16 [M, N], natively."""
    # Fast accumulation: to sum exactly costs more than FP8 wins, and the rounding of the inputs is larger.
    return torch._scaled_mm(
        x, weight.t(), scale_a=x_scale, scale_b=weight_scale.T, out_dtype=torch.bfloat16, use_fast_accum=True
    )


@cache
def probe_fp8(device: torch.device) -> bool:
    """Whether the native product runs on this device and is right: tried once a process."""
    emulated = partial(log.info, "FP8 products are emulated on %s, which does not multiply them natively: %s", device)
    return is_right(_error, device, _TOLERANCE, emulated)


def _error(device: torch.device) -> float:
    """Relative L2 distance of the native product from the same values in fp32; rows of unlike sizes."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(-3, 4, (208 + 384, 1), generator=generator).exp2()
    x, weight = (torch.randn(208 + 384, 512, generator=generator) * sizes).to(device).split([208, 384])
    left, right = round_rows(x), round_rows(weight)
    expected = left.widen() @ right.widen().T
    return float((multiply_fp8(*left, *right) - expected).norm() / expected.norm())


def use_fp8(blocks: nn.Module) -> None:
    """Round every linear layer without bias below `blocks`."""
    for name in [name for name, _ in blocks.named_parameters()]:
        round_layer(blocks, name)


def round_layer(module: nn.Module, name: str) -> None:
    """Round the layer that a parameter below `module` belongs to, if it is linear and has no bias."""
    layer, _, _ = name.rpartition(".")
    linear = module.get_submodule(layer)
    if isinstance(linear, nn.Linear) and linear.bias is None:
        module.set_submodule(layer, FP8Linear(linear.weight))
