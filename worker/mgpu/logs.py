"""What the ranks print: to a file per rank, to the controller's logger, and its end to whoever reports a failure.

Ranks write to a pipe in place of their descriptors 1 and 2, so the output of native libraries comes along.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO, Protocol

log = logging.getLogger(__name__)

TAIL_LINES = 50
FILE_LIMIT_BYTES = 16 << 20  # then the file moves to `.1`, and an older `.1` is dropped
KEPT_FOLDERS = 10  # of fleets that ended badly, per user and machine
_LINE_LIMIT_BYTES = 64 << 10
_PREFIX = "mgpu-"


class LogsSpecs(Protocol):
    """What we use of torch.distributed.elastic.multiprocessing.LogsSpecs."""

    @property
    def root_log_dir(self) -> str | None: ...


LineSink = Callable[[int, str], None]  # rank, line


def redirect_output(output: Connection) -> None:
    """In a rank: everything printed goes to the controller, line by line."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as where the controller itself has none
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # real files in a spawned process
    faulthandler.enable()


class FleetLogs:
    """The folder of one fleet: the ranks' logs, and whatever else tells of its end."""

    def __init__(self, specs: LogsSpecs | LineSink | None) -> None:
        root = getattr(specs, "root_log_dir", None)
        self._is_ours = root is None
        self.folder = _make_folder() if root is None else _make_folder_in(Path(root))
        self._lock = _acquire(self.folder) if self._is_ours else None
        self._sink = specs if callable(specs) else _to_logger

    def open(self, rank: int) -> RankLog:
        return RankLog(rank, self.folder / f"rank{rank}.log", self._sink)

    def evidence(self) -> list[Path]:
        """The ranks' files that tell something: logs, stacks, and recorded collectives."""
        try:
            files = [path for pattern in ("rank*.*", "collectives-rank*") for path in self.folder.glob(pattern)]
            return sorted(path for path in files if path.is_file() and path.stat().st_size)
        except OSError:  # the folder is gone, or no descriptor is free: the error must be told all the same
            return []

    def close(self, *, is_evidence: bool) -> None:
        """Remove the folder, unless somebody asked for it or it is needed to explain the end."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._is_ours and not is_evidence:
            shutil.rmtree(self.folder, ignore_errors=True)


def _make_folder() -> Path:
    """A new one. Of those that fleets before us left behind, the oldest go."""
    parent = Path(tempfile.gettempdir())
    kept = sorted(filter(_is_abandoned, parent.glob(f"{_PREFIX}*")), key=_made_at, reverse=True)
    for old in kept[KEPT_FOLDERS:]:
        shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))


def _make_folder_in(root: Path) -> Path:
    """One of its own: two fleets may be given the same root."""
    root.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))


def _is_abandoned(folder: Path) -> bool:
    """Ours, and no controller holds it: one that still lives, in any process, has its lock."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        os.close(_acquire(folder, fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _made_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # somebody else tidies up too
        return 0.0


def _acquire(folder: Path, flags: int = 0) -> int:
    """A descriptor that holds the folder's lock. Waits, without flags, for one that only looks if it is abandoned."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _to_logger(rank: int, line: str) -> None:
    log.info("[mgpu r%d] %s", rank, line)


class RankLog:
    """One rank's output, fed in chunks."""

    def __init__(self, rank: int, path: Path, sink: LineSink) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rank = rank
        self._path = path
        self._sink = sink
        self._file: BinaryIO = _open_for_writing(path)
        self._partial = b""
        self._is_broken = False

    def feed(self, chunk: bytes) -> None:
        self._write(chunk)
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._emit(line)
        if len(self._partial) > _LINE_LIMIT_BYTES:
            self._flush_partial()

    def close(self) -> None:
        self._flush_partial()
        self._file.close()

    def _flush_partial(self) -> None:
        if self._partial:
            self._emit(self._partial)
            self._partial = b""

    def _emit(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.tail.append(text)
        try:
            self._sink(self._rank, text)
        except Exception:  # a user's callback must not take the fleet down
            log.exception("the log callback failed on a line of rank %d", self._rank)

    def _write(self, chunk: bytes) -> None:
        if self._is_broken:
            return
        try:
            self._rotate()
            self._file.write(chunk)
        except OSError as error:  # a full disk: the fleet goes on, and the caller's sink still hears everything
            self._is_broken = True
            log.warning("the log of rank %d ends here: %s: %s", self._rank, self._path, error.strerror)

    def _rotate(self) -> None:
        if self._file.tell() > FILE_LIMIT_BYTES:
            self._file.close()
            self._path.replace(self._path.with_suffix(".log.1"))
            self._file = _open_for_writing(self._path)


def _open_for_writing(path: Path) -> BinaryIO:
    return path.open("wb", buffering=0)  # whoever looks at it sees all that was said
