"""What a block does between its products, each as one function: the eager twins of `h3.kernels.pointwise`.

All arithmetic is in fp32 and rounded once, to the dtype of the stream. That is nearer to the exact result than the
eager model, which rounds after each operation, and not equal to it bit for bit.

Modulation is a table [K * 3, 6, C] of vectors, by timestep and modality; `places` [T] int32 says which line is a row's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from h3.config import MODALITIES
from h3.model import Rope
from h3.sequence import Span


@dataclass(frozen=True, slots=True)
class Modulated:
    """The modulation of some rows."""

    table: Tensor  # [K * 3, 6, C]
    places: Tensor  # [T] int32

    def vectors(self, index: int) -> Tensor:
        """One of the six of each row: [T, C] fp32."""
        return self.table[:, index].float()[self.places.long()]


def find_places(spans: list[Span], device: torch.device) -> Tensor:
    """Which line of the table each row has: [T] int32. Asks nothing of the host that the device would wait for."""
    places = torch.empty(spans[-1].stop, dtype=torch.int32, device=device)
    for span in spans:
        places[span.rows] = span.clock * MODALITIES + span.modality
    return places


def norm_modulate(x: Tensor, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int) -> Tensor:
    """RMSNorm, then * (1 + scale) + shift, by row. [T, C]"""
    return norm_modulate_fp32(x, weight, eps, modulated, shift, scale).to(x.dtype)


def norm_modulate_fp32(x: Tensor, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int) -> Tensor:
    """The same before it is rounded."""
    normed = F.rms_norm(x.float(), x.shape[1:], weight.float(), eps)
    return normed * (1 + modulated.vectors(scale)) + modulated.vectors(shift)


def add_gated(x: Tensor, hidden: Tensor, gate: int, modulated: Modulated) -> Tensor:
    """x + gate * hidden, in the memory of `hidden`. [T, C]"""
    return hidden.copy_((x.float() + hidden.float() * modulated.vectors(gate)).to(x.dtype))


def add_norm_modulate(
    x: Tensor, hidden: Tensor, gate: int, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int
) -> tuple[Tensor, Tensor]:
    """The two above, one after the other: x + gate * hidden, in the memory of `hidden`, and its norm, modulated."""
    total = add_gated(x, hidden, gate, modulated)
    return total, norm_modulate(total, weight, eps, modulated, shift, scale)


def norm_rotate(qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, rope: Rope) -> Tensor:
    """RMSNorm of each head of q and k, and its rotation, in place. [T, 3, H, D]"""
    for part, weight in zip(qkv.unbind(1), (q_weight, k_weight), strict=False):
        part.copy_(norm_rotate_fp32(part, weight, eps, rope))
    return qkv


def norm_rotate_fp32(heads: Tensor, weight: Tensor, eps: float, rope: Rope) -> Tensor:
    """The same of q or k before it is rounded, in memory of its own. [T, H, D]"""
    half = rope.cos.shape[1]
    cos, sin = rope.cos.float()[:, None], rope.sin.float()[:, None]
    normed = F.rms_norm(heads.float(), heads.shape[-1:], weight.float(), eps)
    first, second, rest = normed.split([half, half, heads.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def swiglu(hidden: Tensor) -> Tensor:
    """silu(gate) * value of [T, 2F], gate first, in the memory of the gate: [T, F], not contiguous."""
    return hidden.chunk(2, dim=-1)[0].copy_(swiglu_fp32(hidden))


def swiglu_fp32(hidden: Tensor) -> Tensor:
    """The same before it is rounded, in memory of its own."""
    gate, value = hidden.chunk(2, dim=-1)
    return F.silu(gate.float()) * value.float()
