"""The tree of errors, as its docstring draws it and docs/operations.md explains its exit codes."""

import inspect
import re
from pathlib import Path

import pytest

import infra.errors
from infra.errors import InfraError

OPERATIONS = Path(__file__).parent.parent.parent.joinpath("docs/operations.md").read_text()
TABLE = OPERATIONS.split("## Exit codes of `h3render pods`\n")[1].split("\n## ")[0]
CLASSES = [
    kind for _, kind in inspect.getmembers(infra.errors, inspect.isclass) if kind.__module__ == infra.errors.__name__
]


def drawn_exit_codes():
    """Of each class in the drawing; one without a number of its own has its parent's."""
    codes, parents = {}, []
    for line in infra.errors.__doc__.splitlines():
        if found := re.match(r"^([│├└─ ]*)([A-Z]\w+)(?: +(\d{1,2})\b)?", line):
            depth, name, code = len(found[1]) // 4, found[2], found[3]
            parents = [*parents[:depth], name]
            if name in vars(infra.errors):
                codes[name] = int(code) if code else codes.get(parents[-2]) if depth else 1
    return codes


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_is_drawn_with_its_exit_code_and_the_page_tells_what_that_means(kind):
    assert issubclass(kind, InfraError)
    assert drawn_exit_codes()[kind.__name__] == kind.exit_code
    assert f"\n| {kind.exit_code} | " in TABLE
