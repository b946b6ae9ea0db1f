"""Who owns what: balanced, ragged ranges of tokens and of heads. Pure arithmetic, no torch.

A rank owns quotient or quotient + 1 items, the larger shares first (56 heads at 6: 10, 10, 9, 9, 9, 9).
No share may be empty: a collective with an empty part is legal, a rank without work is a misconfiguration.
"""

from dataclasses import dataclass

from h3.errors import PartitionError


@dataclass(frozen=True, slots=True)
class Partition:
    """`total` items in order, `len(sizes)` owners."""

    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def start(self, rank: int) -> int:
        return sum(self.sizes[:rank])

    def owned(self, rank: int) -> slice:
        """The items of one rank."""
        return slice(self.start(rank), self.start(rank + 1))


def split_evenly(total: int, parts: int, *, what: str) -> Partition:
    """Balanced ranges of `total` items (`what` names them in the error). Raises PartitionError if one is empty."""
    if total < parts:
        raise PartitionError(f"{total} {what} cannot be split over {parts} ranks: use at most {total} ranks")
    share, larger = divmod(total, parts)
    return Partition((share + 1,) * larger + (share,) * (parts - larger))
