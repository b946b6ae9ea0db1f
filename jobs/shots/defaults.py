"""What rows inherit: the fields that a file says of all its rows, and under them those of whoever submits it."""

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import TypeAdapter, ValidationError

from jobs.request import GenerateRequest, explain_field
from jobs.shots.rows import FIELDS, Defaults, Problem, Row, place_of, show_text, shown_entry, suggest

OF_THE_CALLER = 0  # a line before all lines of the file

_SIZE, _ASPECT = frozenset({"width", "height"}), frozenset({"aspect", "short_side"})
# A field that a row names rules out these of the defaults: a row with a width is not refused for `--aspect`.
_RULED_OUT: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(_SIZE, _ASPECT),
    **dict.fromkeys(_ASPECT, _SIZE),
    "frames": frozenset({"seconds"}),
    "seconds": frozenset({"frames"}),
    "seed": frozenset({"seeds"}),
    "seeds": frozenset({"seed"}),
}


class Inheritance:
    """The defaults of one file, in their order of precedence."""

    def __init__(self, callers: Mapping[str, object]) -> None:
        self.problems: list[Problem] = []
        self._callers = dict(self._read_callers(callers))
        self._defaults = Defaults(OF_THE_CALLER, {})
        self._inherited = self._callers

    def take(self, defaults: Defaults) -> None:
        """Those of the file."""
        if defaults.fields.pop("name", None) is not None:
            self._refuse(defaults.line, "defaults, field", "name", "is each shot's own: leave it out here")
        self._defaults = defaults
        self._inherited = _put_over(defaults.fields, self._callers)

    def complete(self, row: Row) -> dict[str, object]:
        """The row's fields, and of the defaults what they neither name nor rule out."""
        return _put_over(row.fields, self._inherited)

    def is_callers(self, row: Row, field: str) -> bool:
        """Whether neither the row nor its file has said it."""
        return field in self._inherited and field not in row.fields and field not in self._defaults.fields

    def place(self, row: Row, kind: str, field: str) -> tuple[int, str]:
        """Line and place of a field that the row has, where it stands. `kind`: what the form calls a field."""
        if self.is_callers(row, field):
            return OF_THE_CALLER, place_of("field", field)
        if field in self._defaults.fields and field not in row.fields:
            return self._defaults.line, place_of("defaults, field", field)
        return row.line, place_of(kind, field) if field else ""

    def _read_callers(self, callers: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        """Texts as what their fields are: a command line has nothing else, and some forms have types."""
        for name, value in callers.items():
            if name not in FIELDS:
                self._refuse(OF_THE_CALLER, "field", name, f"is not a field of a shot; {suggest(name, FIELDS)}")
            elif name == "name":
                self._refuse(OF_THE_CALLER, "field", name, "is each shot's own: leave it out here")
            elif value is not None:
                try:
                    yield name, _parse(name, value)
                except ValidationError as exc:
                    entry = exc.errors()[0]
                    entry["loc"] = (name,)
                    text = explain_field(shown_entry(entry, show_text(str(value))))
                    self._refuse(OF_THE_CALLER, "field", name, text.removeprefix(f"{name} "))

    def _refuse(self, line: int, kind: str, name: str, text: str) -> None:
        self.problems.append(Problem(line, place_of(kind, name), text))


def _parse(name: str, value: object) -> object:
    """A text as its field's type; other values are checked with each row."""
    field = GenerateRequest.model_fields.get(name)
    if field is None or not isinstance(value, str):
        return value
    parsed: object = TypeAdapter(field.rebuild_annotation()).validate_strings(value)
    return parsed


def _put_over(fields: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    if not defaults:
        return dict(fields)
    out = set(fields).union(*(_RULED_OUT.get(name, ()) for name in fields))
    return {**{name: value for name, value in defaults.items() if name not in out}, **fields}
