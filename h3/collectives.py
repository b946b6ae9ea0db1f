"""Ragged exchange, gather and reduction over a process group, exact sizes in and out.

Every function is a collective: all ranks of the group call it with the same partitions. Works on NCCL and Gloo.
Where rows or heads are traded, gathered or summed, one rank alone gets back what it gave, without a copy.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from h3.partition import Partition
from h3.transport import crossing

T = TypeVar("T")

# One collective under two names: torch 2.13 deprecates the old one, torch 2.9 lacks the new one.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """What an exchange that was begun will give. It holds what is sent until then."""

    source: Tensor
    target: Tensor
    work: dist.Work | None  # None: it is done
    sent_bytes: int
    read: Callable[[Tensor], T]

    def wait(self) -> T:
        """On a GPU what is computed next waits, and the host does not."""
        if self.work is not None:
            with crossing(self.target.device, self.sent_bytes):
                self.work.wait()
        return self.read(self.target)


def scatter_heads(qkv: Tensor, tokens: Partition, heads: Partition, group: dist.ProcessGroup) -> Tensor:
    """Trade this rank's tokens for its heads, so that attention sees the whole sequence.

    qkv      [Tr, 3, H, D]; Tr tokens of this rank (ragged), all H heads
    returns  [T, 3, Hr, D]; all T tokens, this rank's Hr heads

    Source: DeepSpeed-Ulysses, arXiv 2309.14509, section 3.
    """
    if heads.ranks == 1:
        return qkv
    return begin_scatter(qkv, tokens, [heads.owned(rank) for rank in range(heads.ranks)], group).wait()


def gather_heads(out: Tensor, tokens: Partition, heads: Partition, group: dist.ProcessGroup) -> Tensor:
    """The inverse of `scatter_heads` after attention.

    out      [T, Hr, D]; all tokens, this rank's heads
    returns  [Tr, H, D]; this rank's tokens, all heads
    """
    if heads.ranks == 1:
        return out
    owned = [heads.owned(rank) for rank in range(heads.ranks)]
    return torch.cat(begin_gather(out, tokens, owned, group).wait(), dim=1)


def begin_scatter(
    qkv: Tensor, tokens: Partition, heads: Sequence[slice], group: dist.ProcessGroup, *, aside: bool = False
) -> Pending[Tensor]:
    """`scatter_heads` of some heads, `heads[rank]` being those that a rank gets: [T, 3, len(heads[rank]), D].

    `aside` lets what is computed meanwhile go on; else it is done before anything that follows.
    """
    rows, depth, _, head_dim = qkv.shape
    own = _count(heads[dist.get_rank(group)])
    # Each rank's heads together; it gets those of all of this rank's rows.
    sent = torch.cat([qkv[:, :, owned].flatten() for owned in heads])
    return _begin_exchange(
        sent,
        [rows * depth * _count(owned) * head_dim for owned in heads],
        [size * depth * own * head_dim for size in tokens.sizes],
        group,
        aside,
        lambda received: received.view(tokens.total, depth, own, head_dim),
    )


def begin_gather(
    out: Tensor, tokens: Partition, heads: Sequence[slice], group: dist.ProcessGroup, *, aside: bool = False
) -> Pending[list[Tensor]]:
    """`gather_heads` of some heads: those of each rank, [Tr, len(heads[rank]), D]."""
    rank, head_dim = dist.get_rank(group), out.shape[2]
    own, rows = _count(heads[rank]), tokens.sizes[rank]
    sizes = [rows * _count(owned) * head_dim for owned in heads]
    return _begin_exchange(
        out,
        [size * own * head_dim for size in tokens.sizes],
        sizes,
        group,
        aside,
        lambda received: [part.view(rows, -1, head_dim) for part in received.split(sizes)],
    )


def _count(heads: slice) -> int:
    return int(heads.stop - heads.start)


def gather_rows(part: Tensor, rows: Partition, group: dist.ProcessGroup) -> Tensor:
    """Concatenate every rank's rows in rank order.

    part     [Tr, ...]; Tr rows of this rank, maybe none
    returns  [T, ...], the same on every rank
    """
    if rows.ranks == 1:
        return part
    # Equal sizes are what all_gather moves best; the padding never leaves this function.
    most, shape = max(rows.sizes), part.shape[1:]
    padded = part if len(part) == most else torch.cat([part, part.new_zeros(most - len(part), *shape)])
    gathered = part.new_empty(rows.ranks * most, *shape)
    sent = _as_bytes(padded)
    with crossing(part.device, sent.numel() * (rows.ranks - 1)):
        _all_gather(_as_bytes(gathered), sent, group=group)
    if rows.total == len(gathered):
        return gathered
    return torch.cat([padded[:count] for padded, count in zip(gathered.split(most), rows.sizes, strict=True)])


def reduce_rows(summand: Tensor, rows: Partition, group: dist.ProcessGroup) -> Tensor:
    """Sum over ranks, of which each keeps its own rows: in fp32, in an order that is fixed, rounded once.

    summand  [T, ...]; all rows, this rank's part of their values
    returns  [Tr, ...]; this rank's rows, in the same dtype
    """
    if rows.ranks == 1:
        return summand
    # Summed here and not by the backend, whose order hangs on its choice of algorithm and whose sums are rounded on
    # the way. torch accumulates bf16 in fp32.
    shape, row = summand.shape[1:], summand[0].numel()
    own = rows.sizes[dist.get_rank(group)]
    received = _exchange(summand, [size * row for size in rows.sizes], [own * row] * rows.ranks, group)
    return received.view(rows.ranks, own, *shape).sum(0)


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


def share_all(value: T, group: dist.ProcessGroup) -> list[T]:
    """What every rank gives, in rank order, on every rank; pickled, so for small things."""
    everyone: list[T | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return cast("list[T]", everyone)


def _exchange(source: Tensor, sent_sizes: list[int], received_sizes: list[int], group: dist.ProcessGroup) -> Tensor:
    """All-to-all of consecutive parts of `source`, one for each rank, given the element counts. Returns a flat one."""
    return _begin_exchange(source, sent_sizes, received_sizes, group, False, lambda received: received).wait()


def _begin_exchange(
    source: Tensor,
    sent_sizes: list[int],
    received_sizes: list[int],
    group: dist.ProcessGroup,
    aside: bool,
    read: Callable[[Tensor], T],
) -> Pending[T]:
    target = source.new_empty(sum(received_sizes))
    size, kept = source.element_size(), sent_sizes[dist.get_rank(group)]
    sent_bytes = (sum(sent_sizes) - kept) * size
    # What goes on aside is metered where it is waited for.
    with nullcontext() if aside else crossing(source.device, sent_bytes):
        work = dist.all_to_all_single(
            _as_bytes(target),
            sent := _as_bytes(source),
            output_split_sizes=[count * size for count in received_sizes],
            input_split_sizes=[count * size for count in sent_sizes],
            group=group,
            async_op=aside,
        )
    return Pending(sent, target, work, sent_bytes, read)


def _as_bytes(tensor: Tensor) -> Tensor:
    """The same memory as bytes: Gloo refuses several dtypes that it could simply move."""
    return tensor.contiguous().view(-1).view(torch.uint8)
