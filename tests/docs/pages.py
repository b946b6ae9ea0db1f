"""The code blocks of the pages in docs/. A block says its name after its language; a test takes it by that name."""

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = (
    "http-service.md",
    "web-backends.md",
    "batches.md",
    "requests-and-events.md",
    "operations.md",
    "fleet.md",
)
_FENCED = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)

taken: set[tuple[str, str]] = set()  # page and name of each block that a test runs or compares


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    name: str
    text: str


def read_blocks(page: str) -> list[Block]:
    """All of a page, in their order."""
    text = (DOCS / page).read_text()
    found = _FENCED.findall(text)
    assert 2 * len(found) == len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)), f"{page}: a fence is odd"
    return [Block(*heading.partition(" ")[::2], body) for heading, body in found]


def take(page: str, name: str) -> str:
    """The text of one block."""
    [block] = [block for block in read_blocks(page) if block.name == name]
    taken.add((page, name))
    return block.text


def section(page: str, heading: str) -> str:
    """From a heading to the next of its rank."""
    return (DOCS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def read_table(text: str) -> list[list[str]]:
    """The cells of the first table in it, without its head."""
    lines = [line for line in text.partition("\n\n|")[2].partition("\n\n")[0].splitlines() if line.endswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]
