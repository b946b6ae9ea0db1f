"""What every form of a batch file is read as: rows as they were written, and what is wrong with them, by line."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic_core import ErrorDetails

from jobs.request import GenerateRequest

FIELDS = (*GenerateRequest.model_fields, "name", "queue", "seeds")  # of a row
MOST_SHOWN = 60  # characters of a value in a message
_NUMBER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Row:
    """One row; unchecked but for its form."""

    line: int  # 1-based, where it begins
    fields: dict[str, object]  # only what was given


@dataclass(frozen=True, slots=True)
class Defaults(Row):
    """What a file says of all its rows."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person has to put right."""

    line: int  # 1-based
    place: str  # within the line, like "column width"; may be empty
    text: str  # the value, what is wrong with it, the remedy


Found = Row | Problem  # what a reader of a form yields, in the order of the file


def clean_cell(name: str, text: str) -> str:
    """A field's text as it is meant: blanks around it are a prompt's own, and nobody else's; empty if not given."""
    stripped = text.strip()
    return text if stripped and name == "prompt" else stripped


def place_of(kind: str, name: str) -> str:
    """A column or field, as a Problem calls it."""
    return f"{kind} {name if name in FIELDS else show(name)}"


def suggest(name: str, names: Iterable[str]) -> str:
    """The remedy for a name that is none of these."""
    names = tuple(names)
    close = difflib.get_close_matches(name[:MOST_SHOWN].casefold(), names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"


def show(value: object) -> str:
    """A value within a message: in one line, and short."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > MOST_SHOWN:
        return f"{text[: MOST_SHOWN - 3] + '...'!r} ({len(text):,} characters)"
    return repr(value)


def show_text(text: str) -> str:
    """A value that is written as text, within a message: a number as one."""
    return text if _NUMBER.fullmatch(text) else show(text)


def line_at(text: str, position: int) -> int:
    """The 1-based line of a character. Of LF, CRLF and CR, each ends one, as in an editor."""
    return 1 + sum(1 for _ in _LINE_END.finditer(text, 0, position))


def shown_entry(entry: ErrorDetails, shown: str) -> ErrorDetails:
    """What pydantic finds wrong, with its value as messages show it, and its words as they go on after a field."""
    remedy = entry["msg"].replace("String should", "should").partition(", unable to")[0]
    return {**entry, "input": _Shown(entry["input"], shown), "msg": remedy}


class _Shown:
    """For who formats it with `repr`."""

    def __init__(self, value: object, shown: str) -> None:
        self._value = value
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown

    def __len__(self) -> int:
        return len(str(self._value))
