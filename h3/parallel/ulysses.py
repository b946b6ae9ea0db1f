"""Ulysses: tokens are sharded through the blocks; around attention they are traded for heads and back.

Each rank holds all weights. Only attention needs every token, so q, k and v are exchanged sequence-to-head before it
and the result head-to-sequence after it. Ranges may be ragged and nothing is padded, so each rank does exactly the
single-device arithmetic on its rows and on its heads. Source: DeepSpeed-Ulysses, arXiv 2309.14509.

In several groups of heads, the exchanges of one go on beside the attention of another, and only the first group is
waited for, and the last. A head's attention does not depend on the others: the same bits.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from h3.collectives import begin_gather, begin_scatter
from h3.model import Attend, Attention, Denoiser
from h3.parallel.tokens import TokenShards, shard_tokens
from h3.partition import Partition, split_evenly


def share_attention(model: Denoiser, group: dist.ProcessGroup, head_groups: int) -> None:
    """Spread a whole model over `group`. Raises PartitionError if a rank would have no head."""
    heads = split_evenly(model.config.num_attention_heads, dist.get_world_size(group), what="attention heads")
    shards = shard_tokens(model, group, layers_see_all_rows=False)
    if heads.ranks == 1:
        return
    groups = group_heads(heads, head_groups)
    for module in model.blocks.modules():
        if isinstance(module, Attention):
            module.attend = partial(_attend, attend=module.attend, shards=shards, groups=groups)


def group_heads(heads: Partition, groups: int) -> list[list[slice]]:
    """By group and rank, which heads; as many groups as the rank with fewest heads can have, if these are fewer."""
    most = min(groups, *heads.sizes)
    shares = [split_evenly(size, most, what="heads") for size in heads.sizes]
    return [
        [_shift(share.owned(group), heads.start(rank)) for rank, share in enumerate(shares)] for group in range(most)
    ]


def _shift(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _attend(qkv: Tensor, attend: Attend, shards: TokenShards, groups: list[list[slice]]) -> Tensor:
    """[Tr, 3, H, D] to [Tr, H, D]: this rank's tokens, attended over all tokens."""
    tokens, group, aside = shards.tokens, shards.group, len(groups) > 1
    arriving = [begin_scatter(qkv, tokens, heads, group, aside=aside) for heads in groups]
    leaving = []
    for heads in groups:
        # No name holds what has come, nor what is sent for it, once attention is done.
        attended = attend(arriving.pop(0).wait())
        leaving.append(begin_gather(attended, tokens, heads, group, aside=aside))
        del attended
    parts = [pending.wait() for pending in leaving]  # by group and rank
    return torch.cat([part for rank in zip(*parts, strict=True) for part in rank], dim=1)
