"""Every numbered behaviour of the controller has a test that names it.

The numbers are those of the controller's specification, 1 to 95; a test names the ones that it proves at the
beginning of its docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

BEHAVIOURS = range(1, 96)
NUMBERS = re.compile(r"\d+(?:, \d+)*(?=:|\n|$)")


def named_behaviours(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            numbers = NUMBERS.match(ast.get_docstring(node) or "")
            yield from map(int, numbers.group().split(", ")) if numbers else ()


def test_every_numbered_behaviour_has_a_test() -> None:
    named = {number for path in Path(__file__).parent.glob("test_*.py") for number in named_behaviours(path)}
    assert sorted(set(BEHAVIOURS) - named) == []
    assert sorted(named - set(BEHAVIOURS)) == []
