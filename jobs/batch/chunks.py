"""How many rows Redis is asked of at once: many on one way, and no more than it answers in a moment."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

ROWS_A_CALL = 500

Item = TypeVar("Item")


def in_chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """All of them, `size` at once."""
    return (items[first : first + size] for first in range(0, len(items), size))
