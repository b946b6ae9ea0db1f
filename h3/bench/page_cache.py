"""Brings files into the page cache, and counts what a process has read: of a disk, or of that cache."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CHUNK_BYTES = 16 << 20
_COUNTERS = Path("/proc/self/io")


@dataclass(frozen=True, slots=True)
class BytesRead:
    """By this process so far."""

    asked: int  # by read calls, wherever they lay
    from_disk: int  # fetched for it, mapped files included


def count_bytes_read() -> BytesRead | None:
    """None where the kernel does not tell."""
    try:
        told = dict(line.split(": ") for line in _COUNTERS.read_text().splitlines())
        return BytesRead(int(told["rchar"]), int(told["read_bytes"]))
    except (OSError, KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Warming:
    """What it took to have files in the page cache."""

    files: int
    size_bytes: int
    seconds: float
    from_disk_bytes: int | None  # 0: all was there; None: nobody tells


def read_into_cache(paths: Iterable[Path]) -> Warming:
    """Read files from end to end."""
    begun, before = time.monotonic(), count_bytes_read()
    sizes = [_read(path) for path in paths]
    after = count_bytes_read()
    from_disk = after.from_disk - before.from_disk if before and after else None
    return Warming(len(sizes), sum(sizes), time.monotonic() - begun, from_disk)


def _read(path: Path) -> int:
    buffer, total = bytearray(_CHUNK_BYTES), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


def find_files(path: Path) -> list[Path]:
    """The file itself, or all below a folder."""
    return [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())
