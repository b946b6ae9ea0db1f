"""Evidence from the weights themselves of how q, k and v lie in a file.

In trained weights the values' projection is clearly smaller than the queries' and keys'. Read in the right order, the
mean magnitudes of the three parts differ; read in the wrong one, each part is a mixture of all three, and they agree.
Untrained weights tell nothing. Source: observed on the published files.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from h3.config import DenoiserConfig
from h3.errors import CheckpointError
from h3.families import QkvOrder, swap_row_axes

_CLEAR = 0.05  # a spread of the means below this tells nothing
_MARGIN = 4.0  # by which the spread of one reading exceeds the other's where the weights are plain


@dataclass(frozen=True, slots=True)
class QkvEvidence:
    """Spreads of the mean magnitudes of q, k and v, relative to the smallest: one for each way to read the rows."""

    contiguous: float
    interleaved: float

    @property
    def order(self) -> QkvOrder | None:
        """What the weights speak for; None if they are silent."""
        if self.contiguous > max(_CLEAR, _MARGIN * self.interleaved):
            return QkvOrder.CONTIGUOUS
        if self.interleaved > max(_CLEAR, _MARGIN * self.contiguous):
            return QkvOrder.INTERLEAVED
        return None

    def __str__(self) -> str:
        return f"spread of mean magnitudes {self.contiguous:.1%} contiguous, {self.interleaved:.1%} interleaved"


def weigh_order(weight: Tensor, order: QkvOrder, heads: int) -> QkvEvidence:
    """weight [3 x H x D, C] in the model's order, after it was read from a file as one of that order."""
    means = weight.abs().mean(1, dtype=torch.float32)
    if order is QkvOrder.INTERLEAVED:
        means = swap_row_axes(means, 3, heads)  # as they lie in the file
    return QkvEvidence(_spread(means), _spread(swap_row_axes(means, heads, 3)))


def _spread(means: Tensor) -> float:
    thirds = means.unflatten(0, (3, -1)).mean(1)
    smallest, largest = thirds.min().item(), thirds.max().item()
    return (largest - smallest) / smallest if smallest > 0 and largest < math.inf else 0.0  # NaN is neither


def telling_layers(config: DenoiserConfig) -> list[str]:
    """Layers whose weights are weighed: of the first, a middle and the last block."""
    return [f"blocks.{i}.attn.qkv_proj" for i in sorted({0, config.num_layers // 2, config.num_layers - 1})]


def confirm_qkv_order(
    path: Path, order: QkvOrder, config: DenoiserConfig, read: Callable[[str], Tensor], same: str
) -> None:
    """Refuse weights that plainly speak against the order that they are read in.

    `read` gives a layer's weight as it is read, `same` is the format that `path` can be written in again.
    Raises CheckpointError with the evidence.
    """
    if order is QkvOrder.SEPARATE:
        return  # there is no other way to read them
    for layer in telling_layers(config):
        evidence = weigh_order(read(layer), order, config.num_attention_heads)
        if evidence.order not in (None, order):
            raise CheckpointError(
                f"{path}: the rows of {layer} are read as {order}, but its weights say {evidence.order} ({evidence}); "
                f"if they are right: h3render checkpoint convert {path} NEW --to {same} --qkv-order {evidence.order}"
            )
