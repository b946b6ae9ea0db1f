"""Blocks whose pointwise work is fused: applied to a denoiser from outside, before it is spread over ranks.

A block of the eager model passes some thirty times over its rows between its products; this one five times. Products
and attention stay as they are.
"""

import logging
from functools import cache, partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from h3 import pointwise
from h3.collectives import all_agree
from h3.config import BLOCK_MODULATIONS, MODALITIES
from h3.model import Attention, Block, Denoiser, Mlp, Rope
from h3.native import find_obstacle
from h3.pointwise import Modulated, find_places
from h3.sequence import Clock, Modality, Span

# Of a modulation, as the model has them: of attention, and of the MLP.
SHIFT, SCALE, GATE, MLP_SHIFT, MLP_SCALE, MLP_GATE = range(BLOCK_MODULATIONS)
EAGER, FUSED = "eager", "fused"  # as a render's provenance calls it
TOLERANCE = 1e-3  # of the probe, relative L2: a rounding to bf16 here and there; a wrong row is off by about 1

log = logging.getLogger(__name__)


class Pointwise(Protocol):
    """`h3.pointwise`, or its twin on the GPU."""

    def norm_modulate(
        self, x: Tensor, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int
    ) -> Tensor: ...

    def add_norm_modulate(
        self,
        x: Tensor,
        hidden: Tensor,
        gate: int,
        weight: Tensor,
        eps: float,
        modulated: Modulated,
        shift: int,
        scale: int,
    ) -> tuple[Tensor, Tensor]: ...

    def add_gated(self, x: Tensor, hidden: Tensor, gate: int, modulated: Modulated) -> Tensor: ...

    def norm_rotate(self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, rope: Rope) -> Tensor: ...

    def swiglu(self, hidden: Tensor) -> Tensor: ...


def settle_pointwise(model: Denoiser, device: torch.device, group: dist.ProcessGroup) -> str:
    """Fuse the blocks if the kernels run rightly on every rank's device. Collective; which of the two it is."""
    if not all_agree(model.dtype == torch.bfloat16 and probe_kernels(device), group, device):
        return EAGER
    fuse(model, _kernels())
    return FUSED


def fuse(model: Denoiser, compute: Pointwise = pointwise) -> None:
    """Let the blocks compute their pointwise work so. The refiner, which runs once, stays as it is."""
    places = PlacesOfSpans()
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attn._project = partial(_project, block.attn, compute)  # type: ignore[method-assign]  # from outside
        block.mlp.forward = partial(_feed_forward, block.mlp, compute)  # type: ignore[method-assign]
        block.forward = partial(_run_block, block, compute, places)  # type: ignore[method-assign]


class PlacesOfSpans:
    """Finds each row's line of the modulation, once for all blocks of a step."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._places = torch.empty(0)

    def find(self, spans: list[Span], device: torch.device) -> Tensor:
        if spans is not self._spans:
            self._spans, self._places = spans, find_places(spans, device)
        return self._places


def _run_block(
    block: Block,
    compute: Pointwise,
    places: PlacesOfSpans,
    x: Tensor,
    rope: Rope,
    spans: list[Span],
    modulation: Tensor,
) -> Tensor:
    modulated = Modulated(modulation.flatten(0, 1), places.find(spans, x.device))
    norm1, norm2 = block.norm1, block.norm2
    hidden = block.attn(compute.norm_modulate(x, norm1.weight, _eps(norm1), modulated, SHIFT, SCALE), rope)
    x, normed = compute.add_norm_modulate(x, hidden, GATE, norm2.weight, _eps(norm2), modulated, MLP_SHIFT, MLP_SCALE)
    del hidden  # its memory is the stream's
    return compute.add_gated(x, block.mlp(normed), MLP_GATE, modulated)


def _project(attention: Attention, compute: Pointwise, x: Tensor, rope: Rope | None) -> Tensor:
    assert rope is not None, "blocks have positions"
    qkv = attention.qkv_proj(x).unflatten(-1, (3, attention.heads, attention.head_dim))
    return compute.norm_rotate(qkv, attention.q_norm.weight, attention.k_norm.weight, _eps(attention.q_norm), rope)


def _feed_forward(mlp: Mlp, compute: Pointwise, x: Tensor) -> Tensor:
    return mlp.fc2(compute.swiglu(mlp.fc1(x)))


def _eps(norm: torch.nn.RMSNorm) -> float:
    assert norm.eps is not None
    return norm.eps


def _kernels() -> Pointwise:
    from h3.kernels import pointwise as kernels  # here, for Triton comes with CUDA builds of torch alone

    return kernels


@cache
def probe_kernels(device: torch.device) -> bool:
    """Whether the kernels run on this device and agree with their twins: tried once a process."""
    if device.type != "cuda":
        return False
    obstacle = find_obstacle(_error, device, TOLERANCE)
    if obstacle is not None:
        log.warning("pointwise work is not fused on %s, which makes a step slower: %s", device, obstacle)
    return obstacle is None


def _error(device: torch.device) -> float:
    """The largest relative L2 distance of a kernel from its twin, over sizes that are no powers of two."""
    return max(_errors(_kernels(), device, generator=torch.Generator().manual_seed(0)))


def _errors(kernels: Pointwise, device: torch.device, generator: torch.Generator) -> list[float]:
    rows, width, heads, head_dim, half = 37, 96 * 7, 7, 48, 16

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, torch.bfloat16)

    spans = [Span(0, 5, Modality.TEXT, Clock.VIDEO), Span(5, 20, Modality.AUDIO, Clock.AUDIO)]
    spans.append(Span(20, rows, Modality.VIDEO, Clock.VIDEO))
    modulated = Modulated(draw(2 * MODALITIES, BLOCK_MODULATIONS, width), find_places(spans, device))
    x, hidden, weight = draw(rows, width), draw(rows, width), draw(width)
    rope = Rope(draw(rows, half), draw(rows, half))
    qkv, q_weight, k_weight, wide = (
        draw(rows, 3, heads, head_dim),
        draw(head_dim),
        draw(head_dim),
        draw(rows, 2 * width),
    )

    def compute(how: Pointwise) -> list[Tensor]:
        return [
            how.norm_modulate(x, weight, 1e-5, modulated, SHIFT, SCALE),
            *how.add_norm_modulate(x, hidden.clone(), GATE, weight, 1e-5, modulated, MLP_SHIFT, MLP_SCALE),
            how.add_gated(x, hidden.clone(), MLP_GATE, modulated),
            how.norm_rotate(qkv.clone(), q_weight, k_weight, 1e-5, rope),
            how.swiglu(wide.clone()),
        ]

    pairs = zip(compute(kernels), compute(pointwise), strict=True)
    return [float((got.float() - right.float()).norm() / right.float().norm()) for got, right in pairs]
