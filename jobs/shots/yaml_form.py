"""Batches as people write them by hand: a list of shots, or a mapping of `defaults` and `shots`.

All scalars are text, so that 16:9 is no number of base 60, and "no" a word. Read from the parser's events: a tenth of
the time that a tree of nodes takes, and an alias is one more name for what was read once.
"""

import re
from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from yaml.reader import Reader

from jobs.shots.rows import Defaults, Found, Problem, Row, clean_cell, place_of, show, suggest

_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml's, where it was compiled in
_NULLS = ("", "~", "null", "Null", "NULL")
_DEEPEST = 10  # lists and mappings in each other
_MOST_KEYS = 100  # of a mapping, and mappings merged into one: what is read stays as large as the file
_TOP = ("defaults", "shots")
_UNSEEN_ENDS = "\x85\u2028\u2029"  # of lines as YAML counts them; in an editor these go on
_LINE_END = re.compile(rf"\r\n|[\r\n{_UNSEEN_ENDS}]")
_QUOTING = "a text with a colon, a # or a quote in it stands in quotes; indent with blanks"


@dataclass(slots=True)
class _List:
    line: int
    items: list[object] = field(default_factory=list)  # str, None, _List or _Map
    lines: list[int] = field(default_factory=list)  # of the items


@dataclass(slots=True)
class _Map:
    line: int
    fields: dict[str, object] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _Refused(Exception):
    """The rest of the file cannot be read."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def read_yaml(text: str) -> Generator[Found, None, None]:
    """The defaults, if there are any, then the rows. What is wrong with the syntax ends the reading."""
    ends = enumerate((match.group() for match in _LINE_END.finditer(text)), start=1)
    unseen = [line for line, end in ends if end in _UNSEEN_ENDS]
    for found in _read_document(text):
        yield replace(found, line=found.line - bisect_left(unseen, found.line)) if unseen else found


def _read_document(text: str) -> Iterator[Found]:
    """With lines as YAML counts them."""
    try:
        top = _Composer(text).compose()
    except _Refused as refusal:
        yield refusal.problem
        return
    if not isinstance(top, _Map):
        yield from _read_shots(top)
        return
    yield from top.problems
    for name in top.fields.keys() - set(_TOP):
        fault = f"{show(name)} is no part of a batch, which is a list of shots or has defaults and shots"
        yield Problem(top.line, "", f"{fault}; {suggest(name, _TOP)}")
    if (defaults := top.fields.get("defaults")) is not None:
        yield from _read_defaults(defaults, top.line)
    yield from _read_shots(top.fields.get("shots"))


def _read_defaults(defaults: object, line: int) -> Iterator[Found]:
    if not isinstance(defaults, _Map):
        yield Problem(line, "defaults", f"are no mapping of fields, but {_describe(defaults)}")
        return
    found = _read_map(defaults, defaults.line)
    yield from (Defaults(row.line, row.fields) if isinstance(row, Row) else row for row in found)


def _read_shots(shots: object) -> Iterator[Found]:
    if shots is None:
        return
    if not isinstance(shots, _List):
        line = shots.line if isinstance(shots, _Map) else 1
        yield Problem(line, "", f"the shots are no list, but {_describe(shots)}: begin each with '- '")
        return
    for line, item in zip(shots.lines, shots.items, strict=True):
        if isinstance(item, _Map):
            yield from _read_map(item, line)
        elif item is not None:
            yield Problem(
                line, "", f"a shot is a mapping of fields, like '- prompt: a red kite', not {_describe(item)}"
            )


def _read_map(read: _Map, line: int) -> Iterator[Found]:
    """One row; or what is wrong with its form. `line`: where it is used, be it by another name."""
    fields: dict[str, object] = {}
    problems = list(read.problems)
    for name, value in read.fields.items():
        if isinstance(value, str):
            fields[name] = clean_cell(name, value)
        elif name == "seeds" and isinstance(value, _List) and all(isinstance(item, str) for item in value.items):
            fields[name] = value.items
        elif value is not None:
            problems.append(Problem(line, place_of("field", name), f"is {_describe(value)}; write one value"))
    if problems:
        yield from problems
    else:
        yield Row(line, {name: value for name, value in fields.items() if value != ""})


def _describe(value: object) -> str:
    match value:
        case _Map():
            return "a mapping"
        case _List():
            return "a list"
    return show(value)


class _Composer:
    """One document's value, out of the parser's events."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._events: Iterator[Event] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, object] = {}  # named when complete, so nothing holds itself

    def compose(self) -> object:
        """None for an empty file. Raises _Refused."""
        # The parser would give the place in bytes or in characters, as it was built.
        if odd := Reader.NON_PRINTABLE.search(self._text):
            place = f"character {odd.group()!r}"
            line = 1 + sum(1 for _ in _LINE_END.finditer(self._text, 0, odd.start()))
            raise _Refused(Problem(line, place, "is a control character: delete it"))
        try:
            return self._compose_document()
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            raise _refuse(mark, f"{exc.problem}; {_QUOTING}") from exc
        except yaml.YAMLError as exc:
            raise _Refused(Problem(1, "", f"is no YAML: {exc}")) from exc

    def _compose_document(self) -> object:
        next(self._events)  # the stream begins
        if isinstance(next(self._events), StreamEndEvent):
            return None
        value = self._compose(next(self._events), depth=0)
        next(self._events)  # the document ends
        if isinstance(event := next(self._events), DocumentStartEvent):
            raise _refuse(event.start_mark, "a second document begins here; put its shots in a file of their own")
        return value

    def _compose(self, event: Event, depth: int) -> object:
        if depth > _DEEPEST:
            raise _refuse(event.start_mark, "is nested too deeply for a batch of shots")
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                raise _refuse(event.start_mark, f"no anchor &{event.anchor} stands before this alias")
            return self._anchors[event.anchor]
        assert isinstance(event, NodeEvent)
        value = self._compose_node(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _compose_node(self, event: NodeEvent, depth: int) -> object:
        match event:
            case SequenceStartEvent():
                return self._compose_list(event, depth)
            case MappingStartEvent():
                return self._compose_map(event, depth)
        assert isinstance(event, ScalarEvent)
        is_null = event.implicit[0] and event.value in _NULLS  # implicit: plain, without quotes
        return None if is_null else event.value

    def _compose_list(self, start: Event, depth: int) -> _List:
        read = _List(_line(start))
        while not isinstance(event := next(self._events), SequenceEndEvent):
            read.lines.append(_line(event))
            read.items.append(self._compose(event, depth + 1))
        return read

    def _compose_map(self, start: Event, depth: int) -> _Map:
        read, merged = _Map(_line(start)), _Map(_line(start))
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._compose(event, depth + 1)
            value = self._compose(next(self._events), depth + 1)
            if key == "<<":
                _merge(value, merged, event)
            else:
                _add(key, value, read, event)
        read.fields = merged.fields | read.fields
        read.problems = merged.problems + read.problems
        return read


def _add(key: object, value: object, read: _Map, event: Event) -> None:
    if not isinstance(key, str):
        read.problems.append(Problem(_line(event), "", f"a field's name is {_describe(key)}; write a word"))
    elif key in read.fields:
        place = place_of("field", key)
        read.problems.append(Problem(_line(event), place, "is there twice: keep one of the two"))
    else:
        read.fields[key] = value
    if len(read.fields) + len(read.problems) > _MOST_KEYS:
        raise _refuse(event.start_mark, f"a mapping has more than {_MOST_KEYS} fields; begin each shot with '- '")


def _merge(value: object, merged: _Map, event: Event) -> None:
    """Of mappings merged into one, the first that has a field counts."""
    bases = value.items if isinstance(value, _List) else [value]
    if len(bases) > _MOST_KEYS:
        raise _refuse(event.start_mark, f"merges {len(bases):,} mappings into one; {_MOST_KEYS} are the most")
    for base in bases:
        if isinstance(base, _Map):
            merged.fields = base.fields | merged.fields
            merged.problems = base.problems + merged.problems
        else:
            fault = f"merges {_describe(base)}; what stands beside << is a mapping, like *base"
            merged.problems.append(Problem(_line(event), "", fault))
    if len(merged.fields) + len(merged.problems) > _MOST_KEYS:
        raise _refuse(event.start_mark, f"merges more than {_MOST_KEYS} fields into one mapping")


def _line(event: Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _refuse(mark: object, text: str) -> _Refused:
    line, column = getattr(mark, "line", 0) + 1, getattr(mark, "column", 0) + 1
    return _Refused(Problem(line, f"column {column}", text))
