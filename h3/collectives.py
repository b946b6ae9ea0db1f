"""Ragged exchange and gather over a process group, exact sizes in and out.

Every function is a collective: all ranks of the group call it with the same partitions. Works on NCCL and Gloo.
"""

from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from h3.partition import Partition

T = TypeVar("T")

# One collective under two names: torch 2.13 deprecates the old one, torch 2.9 lacks the new one.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def scatter_heads(qkv: Tensor, tokens: Partition, heads: Partition, group: dist.ProcessGroup) -> Tensor:
    """Trade this rank's tokens for its heads, so that attention sees the whole sequence.

    qkv      [Tr, 3, H, D]; Tr tokens of this rank (ragged), all H heads
    returns  [T, 3, Hr, D]; all T tokens, this rank's Hr heads

    Source: DeepSpeed-Ulysses, arXiv 2309.14509, section 3.
    """
    rank = dist.get_rank(group)
    depth, head_dim = qkv.shape[1], qkv.shape[3]
    sent = [part.flatten() for part in qkv.split(list(heads.sizes), dim=2)]
    row = depth * heads.sizes[rank] * head_dim
    received = _exchange(sent, [size * row for size in tokens.sizes], group)
    return received.view(tokens.total, depth, heads.sizes[rank], head_dim)


def gather_heads(out: Tensor, tokens: Partition, heads: Partition, group: dist.ProcessGroup) -> Tensor:
    """The inverse of `scatter_heads` after attention.

    out      [T, Hr, D]; all tokens, this rank's heads
    returns  [Tr, H, D]; this rank's tokens, all heads
    """
    rank = dist.get_rank(group)
    head_dim, rows = out.shape[2], tokens.sizes[rank]
    sent = [part.flatten() for part in out.split(list(tokens.sizes))]
    received = _exchange(sent, [rows * size * head_dim for size in heads.sizes], group)
    parts = received.split([rows * size * head_dim for size in heads.sizes])
    return torch.cat([part.view(rows, -1, head_dim) for part in parts], dim=1)


def gather_rows(part: Tensor, rows: list[int], group: dist.ProcessGroup) -> Tensor:
    """Concatenate every rank's rows in rank order.

    part     [rows[rank], ...]; may be empty
    returns  [sum(rows), ...], the same on every rank
    """
    # Equal sizes are what all_gather moves best; the padding never leaves this function.
    padded = part.new_zeros(max(rows), *part.shape[1:])
    padded[: part.shape[0]] = part
    gathered = part.new_empty(len(rows), *padded.shape)
    _all_gather(_as_bytes(gathered.flatten(0, 1)), _as_bytes(padded), group=group)
    return torch.cat([gathered[rank, :count] for rank, count in enumerate(rows)])


def gather_to_first(part: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """Hand every rank's part to rank 0, in rank order; the others get an empty list.

    part     of the same shape and dtype on every rank
    """
    sent = _as_bytes(part)
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size(group) if dist.get_rank(group) == 0 else 0)]
    dist.gather(sent, received or None, group=group, group_dst=0)
    return [values.view(part.dtype).view(part.shape) for values in received]


def all_agree(value: bool, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether it is true on every rank."""
    votes = torch.tensor(int(value), device=device)
    dist.all_reduce(votes, dist.ReduceOp.MIN, group=group)
    return bool(votes)


def share_from_first(value: T | None, group: dist.ProcessGroup, device: torch.device) -> T:
    """What rank 0 gives, on every rank; pickled, so for small things. The others' value is not looked at."""
    box = [value]
    dist.broadcast_object_list(box, group=group, device=device, group_src=0)
    return cast(T, box[0])


def _exchange(sent: list[Tensor], received_sizes: list[int], group: dist.ProcessGroup) -> Tensor:
    """All-to-all of flat parts, one for each rank, given the element counts that come back."""
    source = torch.cat(sent)
    target = source.new_empty(sum(received_sizes))
    size = source.element_size()
    dist.all_to_all_single(
        _as_bytes(target),
        _as_bytes(source),
        output_split_sizes=[count * size for count in received_sizes],
        input_split_sizes=[part.numel() * size for part in sent],
        group=group,
    )
    return target


def _as_bytes(tensor: Tensor) -> Tensor:
    """The same memory as bytes: Gloo refuses several dtypes that it could simply move."""
    return tensor.contiguous().view(-1).view(torch.uint8)
