"""Blocks whose pointwise work is fused: applied to a denoiser from outside, before it is spread over ranks.

A block of the eager model passes some thirty times over its rows between its products; this one five times. Where its
layers multiply in FP8, these passes round to e4m3 what a layer reads, and what attention does if it is in FP8, too.
Products and attention stay as they are.
"""

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from h3 import pointwise, rounding
from h3.attention import Attending
from h3.collectives import all_agree
from h3.config import BLOCK_MODULATIONS, MODALITIES
from h3.fp8 import FP8Linear, RoundedHeads, RoundedQKV, RoundedRows, Rows, round_rows
from h3.model import Attention, Block, Denoiser, Mlp, Rope
from h3.native import is_right
from h3.pointwise import Modulated, find_places
from h3.sequence import Clock, Modality, Span

# Of a modulation, as the model has them: of attention, and of the MLP.
SHIFT, SCALE, GATE, MLP_SHIFT, MLP_SCALE, MLP_GATE = range(BLOCK_MODULATIONS)
EAGER, FUSED = "eager", "fused"  # as a render's provenance calls it
TOLERANCE = 1e-3  # of the probe, relative L2: a rounding to bf16 here and there; a wrong row is off by about 1
ROUNDING_TOLERANCE = 1e-2  # likewise, to e4m3

log = logging.getLogger(__name__)


class Pointwise(Protocol):
    """`h3.pointwise`, or `h3.rounding`, which gives a layer rounded rows; or the twin of either on the GPU."""

    def norm_modulate(
        self, x: Tensor, weight: Tensor, eps: float, modulated: Modulated, shift: int, scale: int
    ) -> Rows: ...

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
    ) -> tuple[Tensor, Rows]: ...

    def add_gated(self, x: Tensor, hidden: Tensor, gate: int, modulated: Modulated) -> Tensor: ...

    def norm_rotate(self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, rope: Rope) -> Tensor: ...

    def swiglu(self, hidden: Tensor) -> Rows: ...


class Rounding(Pointwise, Protocol):
    """What rounds rows, those of any layer too, and heads."""

    def round_rows(self, x: Tensor) -> RoundedRows: ...

    def norm_rotate_round(
        self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, rope: Rope
    ) -> RoundedQKV: ...


Prepare = Callable[[Tensor, Tensor, Tensor, float, Rope], Tensor | RoundedQKV]
"""From the qkv product to what attention reads: `norm_rotate`, `norm_rotate_round`."""


def settle_pointwise(
    model: Denoiser, device: torch.device, group: dist.ProcessGroup, attending: Attending | None = None
) -> str:
    """Fuse the blocks if the kernels run rightly on every rank's device. Collective; which of the two it is.

    After it is settled whether products are native: where they are, kernels round what layers read.
    `attending` as for `fuse`.
    """
    if not all_agree(model.dtype == torch.bfloat16 and probe_kernels(device), group, device):
        return EAGER
    rounds = _is_native(model) and all_agree(probe_rounding(device), group, device)
    fuse(model, _kernels(), _rounding_kernels() if rounds else None, attending)
    return FUSED


def fuse(
    model: Denoiser,
    compute: Pointwise = pointwise,
    rounds: Rounding | None = None,
    attending: Attending | None = None,
) -> None:
    """Let the blocks compute their pointwise work so. The refiner, which runs once, stays as it is.

    rounds     what blocks of FP8 layers compute with instead, and what such layers round by
    attending  what blocks attend with, to be given rounded heads by `rounds` when it reads such. None where heads are
               exchanged before: a scale that is of all tokens is not known to a rank that has a part of them.
    """
    places = PlacesOfSpans()
    for block in model.blocks:
        assert isinstance(block, Block)
        how = rounds if rounds is not None and _takes_rounded_rows(block) else compute
        prepare: Prepare = how.norm_rotate
        if how is rounds and attending is not None:
            prepare = partial(_prepare, rounds, attending)
        block.attn._project = partial(_project, block.attn, prepare)  # type: ignore[assignment,method-assign]
        block.mlp.forward = partial(_feed_forward, block.mlp, how)  # type: ignore[method-assign]
        block.forward = partial(_run_block, block, how, places)  # type: ignore[method-assign]
    if rounds is not None:
        for layer in _fp8_layers(model.blocks):
            layer.round_rows = rounds.round_rows


def _takes_rounded_rows(block: Block) -> bool:
    return all(isinstance(layer, FP8Linear) for layer in (block.attn.qkv_proj, block.mlp.fc1, block.mlp.fc2))


def _is_native(model: Denoiser) -> bool:
    return any(layer.is_native for layer in _fp8_layers(model.blocks))


def _fp8_layers(blocks: nn.Module) -> list[FP8Linear]:
    return [module for module in blocks.modules() if isinstance(module, FP8Linear)]


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


def _project(attention: Attention, prepare: Prepare, x: Rows, rope: Rope | None) -> Tensor | RoundedQKV:
    assert rope is not None, "blocks have positions"
    qkv = attention.qkv_proj(x).unflatten(-1, (3, attention.heads, attention.head_dim))
    return prepare(qkv, attention.q_norm.weight, attention.k_norm.weight, _eps(attention.q_norm), rope)


def _prepare(
    rounds: Rounding,
    attending: Attending,
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    rope: Rope,
) -> Tensor | RoundedQKV:
    """As the backend of this render reads it."""
    prepare = rounds.norm_rotate_round if attending.reads_rounded else rounds.norm_rotate
    return prepare(qkv, q_weight, k_weight, eps, rope)


def _feed_forward(mlp: Mlp, compute: Pointwise, x: Rows) -> Tensor:
    return mlp.fc2(compute.swiglu(mlp.fc1(x)))


def _eps(norm: nn.RMSNorm) -> float:
    assert norm.eps is not None
    return norm.eps


def _kernels() -> Pointwise:
    from h3.kernels import pointwise as kernels  # here, for Triton comes with CUDA builds of torch alone

    return kernels


def _rounding_kernels() -> Rounding:
    from h3.kernels import rounding as kernels

    return kernels


@cache
def probe_kernels(device: torch.device) -> bool:
    """Whether the kernels run on this device and agree with their twins: tried once a process."""
    slower = partial(log.warning, "pointwise work is not fused on %s, which makes a step slower: %s", device)
    return is_right(lambda device: _error(_kernels(), pointwise, device), device, TOLERANCE, slower)


@cache
def probe_rounding(device: torch.device) -> bool:
    """The same of those that round rows."""
    slower = partial(log.warning, "no kernel rounds to FP8 on %s, which makes a step slower: %s", device)
    return is_right(_rounding_error, device, ROUNDING_TOLERANCE, slower)


def _rounding_error(device: torch.device) -> float:
    kernels = _rounding_kernels()
    rows = torch.randn(37, 2 * 96 * 7, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    rows[5] = 0
    part = rows[:, : 96 * 7]  # as SwiGLU leaves it
    return max(
        _distance(kernels.round_rows(part), round_rows(part)),
        _heads_error(kernels, device),
        _error(kernels, rounding, device),
    )


def _heads_error(kernels: Rounding, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(0)
    rows, heads, head_dim, half = 37, 7, 48, 16
    qkv, q_weight, k_weight = (
        torch.randn(*shape, generator=generator).to(device, torch.bfloat16)
        for shape in ((rows, 3, heads, head_dim), (head_dim,), (head_dim,))
    )
    angles = torch.randn(rows, half, generator=generator).to(device)  # true ones: the scale counts on that
    rope = Rope(angles.cos().bfloat16(), angles.sin().bfloat16())
    found, right = (how.norm_rotate_round(qkv, q_weight, k_weight, 1e-5, rope) for how in (kernels, rounding))
    return max(_distance(got, expected) for got, expected in zip(found, right, strict=True))


def _error(kernels: Pointwise, twins: Pointwise, device: torch.device) -> float:
    """The largest relative L2 distance of a kernel from its twin, over sizes that are no powers of two."""
    return max(_errors(kernels, twins, device, generator=torch.Generator().manual_seed(0)))


def _errors(kernels: Pointwise, twins: Pointwise, device: torch.device, generator: torch.Generator) -> list[float]:
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

    def compute(how: Pointwise) -> list[Rows]:
        return [
            how.norm_modulate(x, weight, 1e-5, modulated, SHIFT, SCALE),
            *how.add_norm_modulate(x, hidden.clone(), GATE, weight, 1e-5, modulated, MLP_SHIFT, MLP_SCALE),
            how.add_gated(x, hidden.clone(), MLP_GATE, modulated),
            how.norm_rotate(qkv.clone(), q_weight, k_weight, 1e-5, rope),
            how.swiglu(wide.clone()),
        ]

    return [_distance(got, right) for got, right in zip(compute(kernels), compute(twins), strict=True)]


def _distance(got: Rows | RoundedHeads, right: Rows | RoundedHeads) -> float:
    expected = _widen(right)
    return float((_widen(got) - expected).norm() / expected.norm())


def _widen(rows: Rows | RoundedHeads) -> Tensor:
    return rows.float() if isinstance(rows, Tensor) else rows.widen()
