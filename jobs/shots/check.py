"""Makes shots of rows as they were written, or names all that is wrong with them. Knows no form of files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jobs.errors import BatchInvalid, PictureInvalid
from jobs.queues import QueueName
from jobs.request import GenerateRequest, explain_field
from jobs.shots.defaults import OF_THE_CALLER, Inheritance
from jobs.shots.labels import Labels
from jobs.shots.rows import FIELDS, Defaults, Found, Problem, Row, place_of, show, show_text, shown_entry, suggest
from jobs.shots.seeds import parse_seeds

MOST_SHOTS = 100_000
MOST_LISTED = 50  # problems in one error

_PICTURES = ("first_frame", "last_frame")


@dataclass(frozen=True, slots=True)
class Shot:
    """One render of a batch."""

    label: str  # what a person calls it: its name, or row-3; with a sweep followed by -s<seed>; unique in the file
    is_named: bool  # by the file: then the label stays when rows are put before it
    line: int  # 1-based, where its row begins
    queue: str
    request: GenerateRequest  # its pictures as keys in the store


@dataclass(frozen=True, slots=True)
class Values:
    """How a form writes a row's values."""

    check: Callable[[dict[str, object]], GenerateRequest]
    place: str  # what it calls a field
    is_typed: bool  # else all values are text, and a number needs no quotes to be one


class Checker:
    """The shots of the rows that are right, and the problems of those that are not."""

    def __init__(
        self, path: Path, values: Values, defaults: Mapping[str, object], queue: str, find_key: Callable[[str], str]
    ) -> None:
        self._path, self._values, self._queue = path, values, queue
        self._inheritance = Inheritance(defaults)
        self._keys = _Keys(find_key)
        self._labels = Labels()
        self._shots: list[Shot] = []
        self._problems: list[Problem] = []
        self._rows = 0
        self._count = 0  # of shots, were all rows right
        self._unknown: set[str] = set()  # names of fields

    def add(self, found: Found) -> None:
        """Rows come after the defaults."""
        match found:
            case Problem():
                self._problems.append(found)
            case Defaults():
                self._refuse_unknown(found)
                self._inheritance.take(found)
            case Row():
                self._take_row(found)

    def finish(self) -> list[Shot]:
        if problems := self._inheritance.problems + self._problems:
            raise BatchInvalid(_list_problems(self._path, problems))
        if not self._rows:
            raise BatchInvalid(f"{self._path} has no shots: write a row for each")
        return self._shots

    def _take_row(self, row: Row) -> None:
        self._rows += 1
        problems = len(self._problems)
        self._refuse_unknown(row)
        fields = self._inheritance.complete(row)
        name = fields.pop("name", None)
        queue = self._check_queue(row, fields.pop("queue", self._queue))
        seeds = self._read_seeds(row, fields)
        self._count_shots(row, len(seeds) or 1)
        self._find_keys(row, fields)
        requests = self._check_requests(row, fields, seeds)
        labels = self._label(row, name, seeds)
        if len(self._problems) == problems:
            shots = zip(labels, requests, strict=True)
            self._shots += [Shot(label, name is not None, row.line, queue, request) for label, request in shots]

    def _refuse_unknown(self, row: Row) -> None:
        for name in sorted(row.fields.keys() - FIELDS):
            del row.fields[name]
            if name not in self._unknown:
                self._unknown.add(name)
                text = f"is not a field of a shot; {suggest(name, FIELDS)}"
                self._problems.append(Problem(row.line, place_of(self._values.place, name), text))

    def _check_queue(self, row: Row, queue: object) -> str:
        if queue not in list(QueueName):
            self._report(row, "queue", f"{show(queue)} is no queue; there are {', '.join(QueueName)}")
        return str(queue)

    def _count_shots(self, row: Row, count: int) -> None:
        self._count += count
        if self._count > MOST_SHOTS:
            raise BatchInvalid(
                f"{self._path}:{row.line}: with this row there are {self._count:,} shots, and a file makes at most "
                f"{MOST_SHOTS:,}: split it"
            )

    def _read_seeds(self, row: Row, fields: dict[str, object]) -> Sequence[int]:
        """Those of a sweep, taken out of the fields; empty without one."""
        written = fields.pop("seeds", None)
        if written is None:
            return ()
        if "seed" in fields:
            self._report(row, "seeds", "stand beside a seed: give one of the two")
            return ()
        try:
            return parse_seeds(written, MOST_SHOTS)
        except ValueError as exc:
            self._report(row, "seeds", f"{show(written)} {exc}")
            return ()

    def _find_keys(self, row: Row, fields: dict[str, object]) -> None:
        """Those of the caller's pictures are keys already."""
        for field in _PICTURES:
            text = fields.get(field)
            if isinstance(text, str) and not self._inheritance.is_callers(row, field):
                try:
                    fields[field] = self._keys.find(text)
                except PictureInvalid as exc:
                    self._report(row, field, " ".join(str(exc).split("\n")))
                    del fields[field]

    def _check_requests(self, row: Row, fields: dict[str, object], seeds: Sequence[int]) -> list[GenerateRequest]:
        sweep = ({**fields, "seed": seed} for seed in seeds) if seeds else (fields,)
        try:
            return [self._values.check(each) for each in sweep]
        except ValidationError as exc:
            for entry in exc.errors():
                field = ".".join(str(part) for part in entry["loc"])
                text = explain_field(self._abridge(entry)).removeprefix(f"{field} ")
                self._report(row, "seeds" if seeds and field == "seed" else field, text)
            return []

    def _abridge(self, entry: ErrorDetails) -> ErrorDetails:
        value = entry["input"]
        is_text = isinstance(value, str) and not self._values.is_typed
        return shown_entry(entry, show_text(value) if is_text else show(value))

    def _label(self, row: Row, name: object, seeds: Sequence[int]) -> list[str]:
        try:
            return self._labels.call(f"row-{self._rows}" if name is None else name, seeds, row.line)
        except ValueError as exc:
            self._report(row, "name", str(exc))
            return []

    def _report(self, row: Row, field: str, text: str) -> None:
        """Of a value that the row has from the defaults, once and where it stands."""
        self._problems.append(Problem(*self._inheritance.place(row, self._values.place, field), text))


class _Keys:
    """Of pictures, by what rows say of them. Each is asked for once."""

    def __init__(self, find_key: Callable[[str], str]) -> None:
        self._find_key = find_key
        self._found: dict[str, str | PictureInvalid] = {}

    def find(self, text: str) -> str:
        """Raises PictureInvalid."""
        found = self._found[text] if text in self._found else self._ask(text)
        if isinstance(found, PictureInvalid):
            raise found
        return found

    def _ask(self, text: str) -> str | PictureInvalid:
        try:
            self._found[text] = self._find_key(text)
        except PictureInvalid as exc:
            self._found[text] = exc
        return self._found[text]


def _list_problems(path: Path, problems: Sequence[Problem]) -> str:
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line)
    lines = [_tell(path, problem) for problem in ordered[:MOST_LISTED]]
    if len(ordered) > MOST_LISTED:
        lines.append(f"and {len(ordered) - MOST_LISTED:,} more")
    return "\n".join(lines)


def _tell(path: Path, problem: Problem) -> str:
    where = f"{path}:{problem.line}" if problem.line != OF_THE_CALLER else "every shot"
    return f"{where}, {problem.place}: {problem.text}" if problem.place else f"{where}: {problem.text}"
