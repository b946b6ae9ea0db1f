"""Sweeps: one row of a batch, rendered with many seeds."""

import re
from collections import Counter
from collections.abc import Sequence

_RANGE = re.compile(r"\s*([0-9]{1,19})\s*(?:\.\.\s*([0-9]{1,19})\s*)?", re.ASCII)


def parse_seeds(written: object, most: int) -> Sequence[int]:
    """Written like 1..8, or 1,4,9, or as a list of numbers. Raises ValueError with what is wrong and the remedy."""
    parts = written if isinstance(written, list) else str(written).split(",")
    ranges = [_parse_range(str(part)) for part in parts]
    count = sum(last - first + 1 for first, last in ranges)
    if count > most:
        raise ValueError(f"makes {count:,} shots, and a file makes at most {most:,}: take fewer seeds")
    seeds = [seed for first, last in ranges for seed in range(first, last + 1)]
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed, count in Counter(seeds).items() if count > 1)
        raise ValueError(f"has seed {twice} twice: leave one out")
    if not seeds:
        raise ValueError("has no seed: write them like 1..8 or 1,4,9")
    return seeds


def _parse_range(part: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ValueError("is no sweep of seeds: write it like 1..8 or 1,4,9")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"ends before it begins: write {last}..{first}")
    return first, last
