"""The page's own files: styles, scripts, what is vendored. Read once; a URL names its content, which never changes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

PREFIX = "/static/"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    content_type: str
    digest: str


@cache
def read_files() -> Mapping[str, StaticFile]:
    """All that are served, by path below `/static/`."""
    root = files("jobs.http.page") / "static"
    return {name: _read(found) for name, found in _walk(root, "") if _ending(name) in _TYPES}


def url_of(name: str) -> str:
    """Raises KeyError for a file that is not there."""
    return f"{PREFIX}{name}?v={read_files()[name].digest}"


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        found += _walk(entry, f"{prefix}{entry.name}/") if entry.is_dir() else [(f"{prefix}{entry.name}", entry)]
    return found


def _read(found: Traversable) -> StaticFile:
    content = found.read_bytes()
    return StaticFile(content, _TYPES[_ending(found.name)], hashlib.sha256(content).hexdigest()[:16])


def _ending(name: str) -> str:
    return name.rpartition(".")[2]
