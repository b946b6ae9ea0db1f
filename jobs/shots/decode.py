"""The text of a file that a person saved, whatever program wrote it."""

import codecs
from pathlib import Path

from jobs.errors import BatchInvalid
from jobs.shots.rows import line_at

MOST_BYTES = 64 << 20
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_REMEDY = 'save the file as UTF-8 (in Excel: "CSV UTF-8")'


def read_text(path: Path) -> str:
    """UTF-8, or UTF-16 that begins with its mark; line ends as they are. Raises BatchInvalid, naming the line."""
    body = _read_bytes(path)
    mark = next((mark for mark in _MARKS if body.startswith(mark)), b"")
    text = _decode(path, body.removeprefix(mark), _MARKS.get(mark, "utf-8"))
    if "\0" in text:
        raise BatchInvalid(f"{path}:{line_at(text, text.index(chr(0)))}: there is a NUL byte: {_REMEDY}")
    if not text.strip():
        raise BatchInvalid(f"{path} is empty: write a row for each shot")
    return text


def _decode(path: Path, body: bytes, encoding: str) -> str:
    try:
        return body.decode(encoding)
    except UnicodeDecodeError as exc:
        before = body[: exc.start].decode(encoding)
        fault = f"byte {body[exc.start]:#04x} is not {encoding[:6].rstrip('-').upper()}"
        raise BatchInvalid(f"{path}:{line_at(before, len(before))}: {fault}: {_REMEDY}") from exc


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise BatchInvalid(f"{path} cannot be read ({exc.strerror}): give the path of a file of shots") from exc
    if len(body) > MOST_BYTES:
        raise BatchInvalid(f"{path} has more than {MOST_BYTES >> 20} MiB: split it")
    return body
