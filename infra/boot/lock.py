"""A file by which one pod tells others on the same network volume that it is at work.

It only saves work, and nothing may depend on it: a pod that was silent for long finds its lock with another, and goes
on. So whoever holds one writes what the other would write, byte for byte, and publishes by a rename.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from infra.boot.errors import Stopped

LOST_S = 60.0  # without a beat, after which a lock is nobody's
BEATS = 6  # in that time
LOOK_S = 0.5

log = structlog.get_logger(__name__)


@contextmanager
def holding(path: Path, owner: str, is_stopped: Callable[[], bool], *, lost_s: float = LOST_S) -> Iterator[None]:
    """Waits for it. Raises Stopped."""
    _acquire(path, owner, is_stopped, lost_s)
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, owner, done, lost_s / BEATS), daemon=True)
    beating.start()
    try:
        yield
    finally:
        done.set()
        beating.join()
        if _read_owner(path) == owner:
            path.unlink(missing_ok=True)


def _acquire(path: Path, owner: str, is_stopped: Callable[[], bool], lost_s: float) -> None:
    """No two clocks are compared: a lock is lost once this process has seen it unchanged for so long."""
    seen, since = None, time.monotonic()
    while not _create(path, owner):
        if (holder := _read_owner(path)) == owner:
            return  # ours, from before this pod was restarted
        now, state = time.monotonic(), _read_state(path)
        if state != seen:
            if seen is None:
                log.info("another pod fetches this checkpoint", lock=path.name, pod=holder)
            seen, since = state, now
        elif now - since > lost_s:
            _break(path, holder)
        if is_stopped():
            raise Stopped("the pod leaves")
        time.sleep(min(LOOK_S, lost_s / BEATS))


def _create(path: Path, owner: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(owner)
    return True


def _break(path: Path, holder: str) -> None:
    log.warning("the pod that fetched this checkpoint is silent: its lock is taken", lock=path.name, pod=holder)
    broken = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):  # another one was faster
        path.rename(broken)
        broken.unlink()


def _beat(path: Path, owner: str, done: threading.Event, pause_s: float) -> None:
    while not done.wait(pause_s):
        if _read_owner(path) == owner:
            with suppress(FileNotFoundError):
                os.utime(path)


def _read_owner(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _read_state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino
