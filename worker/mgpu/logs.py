"""What the ranks print: to a file per rank, to the controller's logger, and its end to whoever reports a failure.

Ranks write to a pipe in place of their descriptors 1 and 2, so the output of native libraries comes along.
"""

from __future__ import annotations

import faulthandler
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
_LINE_LIMIT_BYTES = 64 << 10


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
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # real files in a spawned process
    faulthandler.enable()


class FleetLogs:
    """The directory of one fleet, and its rank logs."""

    def __init__(self, specs: LogsSpecs | LineSink | None) -> None:
        root = getattr(specs, "root_log_dir", None)
        self.is_kept = root is not None
        self.directory = Path(root or tempfile.mkdtemp(prefix="mgpu-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sink = specs if callable(specs) else _to_logger

    def open(self, rank: int) -> RankLog:
        return RankLog(rank, self.directory / f"rank{rank}.log", self._sink)

    def remove(self) -> None:
        if not self.is_kept:
            shutil.rmtree(self.directory, ignore_errors=True)


def _to_logger(rank: int, line: str) -> None:
    log.info("[mgpu r%d] %s", rank, line)


class RankLog:
    """One rank's output, fed in chunks."""

    def __init__(self, rank: int, path: Path, sink: LineSink) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rank = rank
        self._path = path
        self._sink = sink
        self._file: BinaryIO = path.open("wb")
        self._partial = b""

    def feed(self, chunk: bytes) -> None:
        self._rotate()
        self._file.write(chunk)
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

    def _rotate(self) -> None:
        if self._file.tell() > FILE_LIMIT_BYTES:
            self._file.close()
            self._path.replace(self._path.with_suffix(".log.1"))
            self._file = self._path.open("wb")
