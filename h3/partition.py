"""Who owns what: balanced, ragged ranges of tokens, of heads and of weights. Pure arithmetic, no torch.

A rank owns quotient or quotient + 1 items, the larger shares first (56 heads at 6: 10, 10, 9, 9, 9, 9).
No share may be empty: a collective with an empty part is legal, a rank without work is a misconfiguration.
"""

from dataclasses import dataclass
from itertools import pairwise

from h3.errors import PartitionError


@dataclass(frozen=True, slots=True)
class Partition:
    """`total` items in order, `len(sizes)` owners."""

    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def ranks(self) -> int:
        return len(self.sizes)

    def start(self, rank: int) -> int:
        return sum(self.sizes[:rank])

    def owned(self, rank: int) -> slice:
        """The items of one rank."""
        return slice(self.start(rank), self.start(rank + 1))


def split_evenly(total: int, ranks: int, *, what: str, unit: int = 1) -> Partition:
    """Balanced ranges of `total` items (`what` names them in the error), cut only between units of so many.

    The last unit may be a shorter one. Raises PartitionError if a rank would have none.
    """
    units = -(-total // unit)
    if units < ranks:
        told = f"{total} {what}" if unit == 1 else f"{total} {what}, which are {units} units of {unit},"
        raise PartitionError(f"{told} cannot be split over {ranks} ranks: use at most {units} ranks")
    quotient, remainder = divmod(units, ranks)
    edges = [min(total, unit * (rank * quotient + min(rank, remainder))) for rank in range(ranks + 1)]
    return Partition(tuple(stop - start for start, stop in pairwise(edges)))


def clip(rows: slice, owned: slice) -> slice:
    """The part of a range that lies in `owned`, counted from its start; empty if there is none."""
    start, stop = max(rows.start, owned.start), min(rows.stop, owned.stop)
    return slice(start - owned.start, max(start, stop) - owned.start)


@dataclass(frozen=True, slots=True)
class WeightPartition:
    """Which part of a block's four linear layers each rank has: heads, and values within the MLP."""

    heads: Partition
    head_dim: int
    ffn: Partition

    def qkv_rows(self, rank: int) -> tuple[slice, ...]:
        """Its heads in q, in k and in v."""
        heads = self.out_columns(rank)
        return _repeat(heads, 3, self.heads.total * self.head_dim)

    def out_columns(self, rank: int) -> slice:
        """What its heads put out."""
        owned = self.heads.owned(rank)
        return slice(owned.start * self.head_dim, owned.stop * self.head_dim)

    def fc1_rows(self, rank: int) -> tuple[slice, ...]:
        """The same values in the gate's half and in the other."""
        return _repeat(self.ffn.owned(rank), 2, self.ffn.total)

    def fc2_columns(self, rank: int) -> slice:
        return self.ffn.owned(rank)


def split_weights(heads: int, head_dim: int, ffn_dim: int, ranks: int, *, unit: int) -> WeightPartition:
    """A head is the unit of attention, `unit` values that of the MLP. Raises PartitionError."""
    return WeightPartition(
        split_evenly(heads, ranks, what="attention heads"),
        head_dim,
        split_evenly(ffn_dim, ranks, what="FFN values", unit=unit),
    )


def _repeat(rows: slice, times: int, distance: int) -> tuple[slice, ...]:
    return tuple(slice(rows.start + distance * i, rows.stop + distance * i) for i in range(times))
