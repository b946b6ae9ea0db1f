"""Ulysses: tokens are sharded through the blocks; around attention they are traded for heads and back.

Each rank holds all weights and a balanced range of the packed sequence. Norms, projections and MLPs need no
communication; attention needs every token, so q, k and v are exchanged sequence-to-head before it and the result
head-to-sequence after it. Ranges may be ragged and nothing is padded, so each rank does exactly the single-device
arithmetic on its rows and on its heads. Rows that leave the heads are gathered, so every rank steps the same latents.
Source: DeepSpeed-Ulysses, arXiv 2309.14509.
"""

from functools import partial

import torch.distributed as dist
from torch import Tensor

from h3.collectives import gather_heads, gather_rows, scatter_heads
from h3.model import Attention, Denoiser, Modulation, Rope, Velocity, attend_all_heads
from h3.partition import Partition, split_evenly
from h3.sequence import Modality, Span, clip_spans


def shard_tokens(model: Denoiser, group: dist.ProcessGroup) -> None:
    """Make `model.velocity` run over `group`; its inputs and outputs stay whole on every rank.

    A collective at each call. Raises PartitionError if a rank would have no head.
    """
    world_size = dist.get_world_size(group)
    heads = split_evenly(model.config.num_attention_heads, world_size, what="attention heads")
    attentions = [module for module in model.blocks.modules() if isinstance(module, Attention)]
    velocity = model.velocity

    def sharded_velocity(x: Tensor, rope: Rope, spans: list[Span], modulation: Modulation) -> Velocity:
        tokens = split_evenly(x.shape[0], world_size, what="tokens")
        for attention in attentions:
            attention.attend = partial(_attend, tokens=tokens, heads=heads, group=group)
        owned = tokens.owned(dist.get_rank(group))
        part = velocity(x[owned], rope.rows(owned), clip_spans(spans, owned), modulation)
        return Velocity(
            video=gather_rows(part.video, _rows_per_rank(spans, tokens, Modality.VIDEO), group),
            audio=gather_rows(part.audio, _rows_per_rank(spans, tokens, Modality.AUDIO), group),
        )

    model.velocity = sharded_velocity  # type: ignore[method-assign]  # applied from outside, by design


def _attend(qkv: Tensor, tokens: Partition, heads: Partition, group: dist.ProcessGroup) -> Tensor:
    """[Tr, 3, H, D] to [Tr, H, D]: this rank's tokens, attended over all tokens."""
    attended = attend_all_heads(scatter_heads(qkv, tokens, heads, group))
    return gather_heads(attended, tokens, heads, group)


def _rows_per_rank(spans: list[Span], tokens: Partition, modality: Modality) -> list[int]:
    """How many target rows of a modality each rank's head puts out."""
    shares = [clip_spans(spans, tokens.owned(rank)) for rank in range(len(tokens.sizes))]
    return [sum(s.stop - s.start for s in share if s.is_target and s.modality is modality) for share in shares]
