"""Batches as tables: a header line, then a row for each shot, as spreadsheets of every country write them."""

import csv
import io
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jobs.shots.rows import FIELDS, Found, Problem, Row, clean_cell, line_at, show, suggest

_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
_NO_LIMIT = 2**31 - 1  # characters in a cell; a C long on every system


@dataclass(frozen=True, slots=True)
class _Cells:
    line: int
    cells: list[str]


def read_csv(text: str) -> Generator[Found, None, None]:
    """Rows by the names in the header. A header that is wrong, or a quote, ends the reading: the rest is guesswork."""
    delimiter = _find_delimiter(text)
    with _without_cell_limit():
        table = _read_cells(text, delimiter)
        header = next(table, None)
        if header is None or isinstance(header, Problem):
            yield from [header] if header else []
            return
        names = [_normalize(cell) for cell in header.cells]
        if problems := list(_check_header(header, names)):
            yield from problems
            return
        for cells in table:
            yield cells if isinstance(cells, Problem) else _read_row(cells, names, header.line, delimiter)


def _find_delimiter(text: str) -> str:
    header = next((line for line in io.StringIO(text, newline="") if line.strip()), "")
    return max(_DELIMITERS, key=header.count)  # the comma, if there is none


def _read_cells(text: str, delimiter: str) -> Iterator[_Cells | Problem]:
    """The rows that are not empty, each without the empty cells at its end; a broken quote ends them."""
    lines = io.StringIO(text, newline="")  # CR, LF and CRLF each end a line, and within quotes stay as they are
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line, start = 1, 0
    try:
        for cells in reader:
            while cells and not cells[-1].strip():
                cells.pop()
            if cells:
                yield _explain_blank(text, start, delimiter, cells) or _Cells(line, cells)
            line, start = reader.line_num + 1, lines.tell()
    except csv.Error:
        yield _explain_quote(text, start, delimiter)


def _explain_blank(text: str, start: int, delimiter: str, cells: Sequence[str]) -> Problem | None:
    """The first quote of the row from `start` on that a blank makes a letter of its cell, if there is one."""
    if not any(cell[:1].isspace() and cell.lstrip().startswith('"') for cell in cells):
        return None
    cell, blank = _cell_pattern(delimiter), re.compile(rf'[^\S{delimiter}\r\n]+"')
    for column in range(1, len(cells) + 1):
        if blank.match(text, start):
            fault = "has a blank before its quote, which so becomes a letter of the text: delete the blank"
            return Problem(line_at(text, start), f"column {column}", fault)
        match = cell.match(text, start)
        start = match.end() if match else start
    return None


def _cell_pattern(delimiter: str) -> re.Pattern[str]:
    """A cell and the delimiter after it, as they are written."""
    return re.compile(rf'(?:"(?:[^"]|"")*+"|[^"{delimiter}\r\n][^{delimiter}\r\n]*+)?{delimiter}')


def _explain_quote(text: str, start: int, delimiter: str) -> Problem:
    """The module only says that a quote is wrong in the row from `start` on: find the cell."""
    cell = _cell_pattern(delimiter)
    column = 1
    while match := cell.match(text, start):
        start, column = match.end(), column + 1
    closed = re.compile(r'"(?:[^"]|"")*+"').match(text, start)
    fault = f"closes in line {line_at(text, closed.end())} with text after it" if closed else "is never closed"
    remedy = 'write each quote within a quoted cell twice, "like ""this"" one"'
    return Problem(line_at(text, start), f"column {column}", f"the quote that opens here {fault}; {remedy}")


@contextmanager
def _without_cell_limit() -> Iterator[None]:
    """A prompt that is too long is a matter of its row and column; the module would only say that one is."""
    before = csv.field_size_limit(_NO_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _normalize(name: str) -> str:
    return "_".join(name.replace("-", " ").casefold().split())


def _check_header(header: _Cells, names: Sequence[str]) -> Iterator[Problem]:
    for column, (cell, name) in enumerate(zip(header.cells, names, strict=True), start=1):
        place = f"column {column}"
        if name in names[: column - 1] and name:
            first = names.index(name) + 1
            yield Problem(
                header.line, place, f"{show(cell)} is the name of column {first} already: keep one of the two"
            )
        elif name and name not in FIELDS:
            fault = f"{show(cell)} is not a field of a shot, as the first row names them"
            yield Problem(header.line, place, f"{fault}; {suggest(name, FIELDS)}")


def _read_row(row: _Cells, names: Sequence[str], header_line: int, delimiter: str) -> Found:
    if len(row.cells) > len(names):
        return _explain_excess(row, len(names), delimiter)
    fields: dict[str, object] = {}
    for column, (name, cell) in enumerate(zip(names, row.cells, strict=False), start=1):
        if value := clean_cell(name, cell):
            if not name:
                return Problem(
                    row.line, f"column {column}", f"{show(cell)} has no name above it, in line {header_line}"
                )
            fields[name] = value
    return Row(row.line, fields)


def _explain_excess(row: _Cells, columns: int, delimiter: str) -> Problem:
    fault = f"is one cell too many: the row has {len(row.cells)}, the header {columns}"
    sign = f"a text with a {_DELIMITERS[delimiter]} in it"
    remedy = f'{sign} stands in quotes, "like{delimiter} this", with no blank before them'
    return Problem(row.line, f"column {columns + 1}", f"{show(row.cells[columns])} {fault}; {remedy}")
