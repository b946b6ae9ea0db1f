"""Ulysses: tokens are sharded through the blocks; around attention they are traded for heads and back.

Each rank holds all weights. Only attention needs every token, so q, k and v are exchanged sequence-to-head before it
and the result head-to-sequence after it. Ranges may be ragged and nothing is padded, so each rank does exactly the
single-device arithmetic on its rows and on its heads. Source: DeepSpeed-Ulysses, arXiv 2309.14509.
"""

from functools import partial

import torch.distributed as dist
from torch import Tensor

from h3.collectives import gather_heads, scatter_heads
from h3.model import Attend, Attention, Denoiser
from h3.parallel.tokens import TokenShards, shard_tokens
from h3.partition import Partition, split_evenly


def share_attention(model: Denoiser, group: dist.ProcessGroup) -> None:
    """Spread a whole model over `group`. Raises PartitionError if a rank would have no head."""
    heads = split_evenly(model.config.num_attention_heads, dist.get_world_size(group), what="attention heads")
    shards = shard_tokens(model, group, layers_see_all_rows=False)
    for module in model.blocks.modules():
        if isinstance(module, Attention):
            module.attend = partial(_attend, attend=module.attend, shards=shards, heads=heads)


def _attend(qkv: Tensor, attend: Attend, shards: TokenShards, heads: Partition) -> Tensor:
    """[Tr, 3, H, D] to [Tr, H, D]: this rank's tokens, attended over all tokens."""
    attended = attend(scatter_heads(qkv, shards.tokens, heads, shards.group))
    return gather_heads(attended, shards.tokens, heads, shards.group)
