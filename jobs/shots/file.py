"""Many shots from one file, as people write them: a .csv, .jsonl or .yaml, checked whole before anything is queued.

Queues nothing and knows no store: pictures are turned into keys by whoever calls.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from jobs.errors import BatchInvalid
from jobs.queues import QueueName
from jobs.request import GenerateRequest
from jobs.shots.check import Checker, Shot, Values
from jobs.shots.csv_form import read_csv
from jobs.shots.decode import read_text
from jobs.shots.jsonl_form import read_jsonl
from jobs.shots.rows import Found
from jobs.shots.yaml_form import read_yaml

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Form:
    """A way to write a batch."""

    read: Callable[[str], Generator[Found, None, None]]
    values: Values


def _check_texts(fields: dict[str, object]) -> GenerateRequest:
    return GenerateRequest.model_validate_strings({name: str(value) for name, value in fields.items()})


_YAML = _Form(read_yaml, Values(_check_texts, "field", is_typed=False))
_FORMS = {
    ".csv": _Form(read_csv, Values(_check_texts, "column", is_typed=False)),
    ".jsonl": _Form(read_jsonl, Values(GenerateRequest.model_validate, "field", is_typed=True)),
    ".yaml": _YAML,
    ".yml": _YAML,
}


def read_shots(
    path: Path,
    *,
    defaults: Mapping[str, object] = _NOTHING,
    queue: str = QueueName.BATCH,
    find_key: Callable[[str], str] = str,
) -> list[Shot]:
    """All shots of a file, in its order. Raises BatchInvalid, which lists every row that is wrong.

    defaults  fields for the rows that do not name them, typed or as text; those of the file itself come first.
              Pictures among them are keys already: a path of theirs would not begin at the file
    queue     for the rows that name none
    find_key  turns what a row says of a picture into its key, or raises PictureInvalid; asked once for each text
    """
    form = _find_form(path)
    checker = Checker(path, form.values, defaults, queue, find_key)
    with closing(form.read(read_text(path))) as found:
        for each in found:
            checker.add(each)
    return checker.finish()


def _find_form(path: Path) -> _Form:
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise BatchInvalid(f"{path} is no batch by its name: it ends in .csv, .jsonl or .yaml (.yml)")
    return form
