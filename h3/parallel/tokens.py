"""Token sharding, which every mode has: each rank takes its rows through the blocks and the heads.

Norms, modulation, residuals and heads need no other row. What does is the mode's matter: it replaces the layers that
mix rows, or holds only a part of them. Rows that leave the heads are gathered, so every rank steps the same latents.
"""

from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from h3.collectives import gather_rows
from h3.model import Denoiser, Modulation, Rope, Velocity
from h3.partition import Partition, split_evenly
from h3.sequence import Modality, Span, clip_spans


@dataclass(slots=True)
class TokenShards:
    """Which rows of the running sequence each rank of the group has."""

    group: dist.ProcessGroup
    tokens: Partition = field(init=False)  # of the sequence that is in the model now: set by each velocity


def shard_tokens(model: Denoiser, group: dist.ProcessGroup, *, layers_see_all_rows: bool) -> TokenShards:
    """Make `model.velocity` run over `group`; its inputs and outputs stay whole on every rank.

    The blocks get the rotary angles of this rank's rows or, if their layers bring all rows together, of all.
    A collective at each call, which raises PartitionError for fewer tokens than ranks.
    """
    shards, velocity = TokenShards(group), model.velocity
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)

    def sharded_velocity(x: Tensor, rope: Rope, spans: list[Span], modulation: Modulation) -> Velocity:
        shards.tokens = tokens = split_evenly(x.shape[0], world_size, what="tokens")
        owned = tokens.owned(rank)
        angles = rope if layers_see_all_rows else rope.rows(owned)
        # No name holds the rows of all ranks, nor this rank's, once the blocks make others of them.
        rows = [x[owned].clone()]
        del x
        part = velocity(rows.pop(), angles, clip_spans(spans, owned), modulation)
        return Velocity(
            video=gather_rows(part.video, _target_rows(spans, tokens, Modality.VIDEO), group),
            audio=gather_rows(part.audio, _target_rows(spans, tokens, Modality.AUDIO), group),
        )

    model.velocity = sharded_velocity  # type: ignore[method-assign]  # applied from outside, by design
    return shards


def _target_rows(spans: list[Span], tokens: Partition, modality: Modality) -> Partition:
    """How many target rows of a modality each rank's head puts out; some may have none."""
    shares = [clip_spans(spans, tokens.owned(rank)) for rank in range(tokens.ranks)]
    return Partition(
        tuple(sum(s.stop - s.start for s in share if s.is_target and s.modality is modality) for share in shares)
    )
