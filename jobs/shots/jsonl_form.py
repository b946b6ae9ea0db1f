"""Batches as programs write them: one JSON object a line, with typed values."""

import io
import json
from collections.abc import Generator

from jobs.shots.rows import Found, Problem, Row, place_of

_REMEDY = "each line is one whole object, with no comma after it"


class _FieldTwice(ValueError):
    """The object's own last word would win, silently."""


def read_jsonl(text: str) -> Generator[Found, None, None]:
    """Each line for itself; but an array ends the reading, for then every line would be wrong."""
    is_first = True
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        if not line.strip():
            continue
        if is_first and line.lstrip().startswith("["):
            column = line.index("[") + 1
            yield Problem(number, f"column {column}", f"an array begins here; leave its brackets out: {_REMEDY}")
            return
        is_first = False
        yield _read_line(number, line.rstrip())


def _read_line(number: int, line: str) -> Found:
    try:
        fields = json.loads(line, object_pairs_hook=_collect)
    except json.JSONDecodeError as exc:
        return Problem(number, f"column {exc.colno}", f"{exc.msg}; {_REMEDY}")
    except _FieldTwice as exc:
        return Problem(number, place_of("field", str(exc)), "is there twice: keep one of the two")
    except RecursionError:
        return Problem(number, "", "has too many brackets within each other: a shot has none, but for its seeds")
    except ValueError:  # json's errors are of this class, too; this one is int's own
        return Problem(number, "", "has a number with thousands of digits: write a smaller one")
    if not isinstance(fields, dict):
        return Problem(number, "", f"is no JSON object: {_REMEDY}")
    return Row(number, {name: value for name, value in fields.items() if value is not None})


def _collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise _FieldTwice(next(name for name in names if names.count(name) > 1))
    return fields
