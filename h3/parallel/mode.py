"""How ranks share a render: where a mode's name becomes what is done."""

from enum import StrEnum
from functools import partial

import torch.distributed as dist

from h3.checkpoint import Trim, keep_all
from h3.config import DenoiserConfig
from h3.model import Denoiser
from h3.parallel.tensor import cut_weights, partition_weights, share_layers
from h3.parallel.ulysses import share_attention
from h3.partition import split_evenly
from h3.precision import Precision


class Mode(StrEnum):
    """What each rank holds, and what ranks exchange."""

    ULYSSES = "ulysses"  # all weights; tokens are traded for heads around attention
    TENSOR = "tensor"  # a part of every layer of the blocks; rows are brought together, and summands reduced

    @property
    def keeps_rows(self) -> bool:
        """Whether layers see no rows but their rank's, attention aside."""
        match self:
            case Mode.ULYSSES:
                return True
            case Mode.TENSOR:
                return False

    def exchanges_heads(self, world_size: int) -> bool:
        """Whether a rank projects heads of its own tokens alone."""
        return self.keeps_rows and world_size > 1


def check_mode(mode: Mode, config: DenoiserConfig, precision: Precision, world_size: int) -> None:
    """Raises PartitionError if a rank would have nothing to do."""
    match mode:
        case Mode.ULYSSES:
            split_evenly(config.num_attention_heads, world_size, what="attention heads")
        case Mode.TENSOR:
            partition_weights(config, precision, world_size)


def trim_for(mode: Mode, config: DenoiserConfig, precision: Precision, rank: int, world_size: int) -> Trim:
    """What a rank leaves out when it loads. Raises PartitionError."""
    match mode:
        case Mode.ULYSSES:
            return keep_all
        case Mode.TENSOR:
            return partial(cut_weights, partition=partition_weights(config, precision, world_size), rank=rank)


def spread(model: Denoiser, mode: Mode, group: dist.ProcessGroup, head_groups: int = 1) -> None:
    """Run a model, loaded as `trim_for` has it, over `group`: at one rank, too, and then bit for bit as without.

    Its inputs and outputs stay whole on every rank. A collective at each velocity from now on. Raises PartitionError.
    `head_groups` are exchanged one beside the attention of another; tensor mode exchanges no heads.
    """
    match mode:
        case Mode.ULYSSES:
            share_attention(model, group, head_groups)
        case Mode.TENSOR:
            share_layers(model, group)
