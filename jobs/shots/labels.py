"""What the shots of a file are called: each in another way."""

import unicodedata
from collections.abc import Sequence

from jobs.shots.rows import show

MOST_NAME_CHARACTERS = 200
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")  # unicode categories


class Labels:
    """Those of one file."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}  # label -> line of its row

    def call(self, name: object, seeds: Sequence[int], line: int) -> list[str]:
        """A label for each shot of a row: the name, in a sweep with its seed. Raises ValueError with what is wrong."""
        if not isinstance(name, str) or not _is_name(name):
            raise ValueError(f"{show(name)} is no name: write one line of at most {MOST_NAME_CHARACTERS} characters")
        labels = [f"{name}-s{seed}" for seed in seeds]
        for label in (name, *labels):
            if label in self._lines:
                raise ValueError(f"{show(label)} is what a shot of line {self._lines[label]} is called already")
            self._lines[label] = line
        return labels or [name]


def _is_name(text: str) -> bool:
    is_line = not any(unicodedata.category(character) in _CONTROLS for character in text)
    return bool(text.strip()) and len(text) <= MOST_NAME_CHARACTERS and is_line
