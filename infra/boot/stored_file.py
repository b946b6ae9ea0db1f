"""One file on its way: where its bytes are kept, which parts are there, and who may write.

All of it lies in a hidden folder beside the models: `NAME.part` has the bytes at their places, `NAME.parts.json` tells
which parts are whole, `NAME.verified` marks a finished file, and `NAME.lock` says who fetches it.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from infra.boot.lock import holding
from infra.boot.manifest import CheckpointFile

ASIDE = ".h3render"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file, the last not included."""

    begin: int
    end: int


class Progress(BaseModel):
    """Of the parts that are whole, by their begin; of another file of that name nothing is used."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    size_bytes: int
    part_bytes: int
    whole: frozenset[int] = frozenset()


class Mark(BaseModel):
    """That a file was read through and is right, as long as it is not touched again."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    size_bytes: int
    mtime_ns: int


class StoredFile:
    """A file of the manifest in its folder."""

    def __init__(self, folder: Path, file: CheckpointFile, part_bytes: int) -> None:
        self.file = file
        self.path = folder / file.name
        self._aside = folder / ASIDE
        self._stem = quote(file.name, safe="")
        self._part_bytes = part_bytes
        self._progress = self._read_progress()
        self._guard = threading.Lock()

    def _side(self, suffix: str) -> Path:
        return self._aside / f"{self._stem}.{suffix}"

    # --- finished

    def is_verified(self) -> bool:
        """Whether it is there and right; it is read through only if there is no mark of that."""
        if not self._has_size():
            return False
        if self._read_mark() == self._make_mark():
            return True
        log.info("a checkpoint is read through", name=self.file.name, size_bytes=self.file.size_bytes)
        if digest(self.path) != self.file.sha256:
            log.warning("a checkpoint is not what the manifest tells", name=self.file.name)
            return False
        self._write_mark()
        return True

    def publish(self) -> bool:
        """Give it its name if its bytes are right; else all of them are dropped."""
        try:
            is_right = self._is_right()
        except FileNotFoundError:  # another pod has, as it may if this one was silent for long
            return self.is_verified()
        if not is_right:
            self.drop()
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._side("part").replace(self.path)
        self._write_mark()
        self._side("parts.json").unlink(missing_ok=True)
        return True

    def _is_right(self) -> bool:
        path = self._side("part")
        with path.open("rb+") as written:
            os.fsync(written.fileno())
        return path.stat().st_size == self.file.size_bytes and digest(path) == self.file.sha256

    def drop(self) -> None:
        """What was fetched of it."""
        for suffix in ("parts.json", "part"):
            self._side(suffix).unlink(missing_ok=True)
        self._progress = self._read_progress()

    def _has_size(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == self.file.size_bytes

    def _make_mark(self) -> Mark:
        found = self.path.stat()
        return Mark(sha256=self.file.sha256, size_bytes=found.st_size, mtime_ns=found.st_mtime_ns)

    def _read_mark(self) -> Mark | None:
        try:
            return Mark.model_validate_json(self._side("verified").read_bytes())
        except (OSError, ValidationError):
            return None

    def _write_mark(self) -> None:
        self._replace("verified", self._make_mark().model_dump_json())

    # --- parts

    @property
    def missing(self) -> list[Part]:
        begins = range(0, self.file.size_bytes, self._part_bytes)
        return [
            Part(begin, min(begin + self._part_bytes, self.file.size_bytes))
            for begin in begins
            if begin not in self._progress.whole
        ]

    @property
    def missing_bytes(self) -> int:
        return sum(part.end - part.begin for part in self.missing)

    def take_up(self) -> bool:
        """Whether some of it is there from before; another pod may have fetched it."""
        self._progress = self._read_progress()
        return bool(self._progress.whole)

    def open(self) -> int:
        """A descriptor to write its parts to, at their places."""
        return os.open(self._side("part"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def note_whole(self, part: Part) -> None:
        """From any thread. After a host's crash it may be told of bytes that are lost: the digest finds that."""
        with self._guard:
            whole = self._progress.whole | {part.begin}
            self._progress = self._progress.model_copy(update={"whole": whole})
            self._replace("parts.json", self._progress.model_dump_json())

    def _read_progress(self) -> Progress:
        none = Progress(sha256=self.file.sha256, size_bytes=self.file.size_bytes, part_bytes=self._part_bytes)
        try:
            told = Progress.model_validate_json(self._side("parts.json").read_bytes())
        except (OSError, ValidationError):
            return none
        is_same = self._side("part").exists() and told.model_copy(update={"whole": frozenset()}) == none
        return told if is_same else none

    def _replace(self, suffix: str, text: str) -> None:
        self._aside.mkdir(parents=True, exist_ok=True)
        new = self._side(f"{suffix}.{os.getpid()}")
        new.write_text(text)
        new.replace(self._side(suffix))

    # --- together with other pods

    @contextmanager
    def locked(self, owner: str, is_stopped: Callable[[], bool]) -> Iterator[None]:
        """One pod of a volume fetches, and the others wait. Raises Stopped."""
        self._aside.mkdir(parents=True, exist_ok=True)
        with holding(self._side("lock"), owner, is_stopped):
            yield


def digest(path: Path) -> str:
    """SHA-256 of all of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
