"""What befalls the worker of a scripted runner: a signal at an exact moment, uploads that wait."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from jobs.file_store import FileStore
from jobs.lease import Leases
from tests.cases.runners import LONGEST_WAIT_S, trace
from tests.waiting import eventually


def signal_before(owner: type, name: str) -> None:
    """Send this process a SIGTERM just before a method is called, the first time."""
    method, done = getattr(owner, name), []

    def wrapped(*args: object, **kwargs: object) -> object:
        if not done:
            done.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return method(*args, **kwargs)

    setattr(owner, name, wrapped)


def signal_after(owner: type, name: str) -> None:
    method, done = getattr(owner, name), []

    def wrapped(*args: object, **kwargs: object) -> object:
        answer = method(*args, **kwargs)
        if answer is not None and not done:
            done.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return answer

    setattr(owner, name, wrapped)


def hold_uploads(hold: Path) -> None:
    for name in ("put", "put_once"):
        setattr(FileStore, name, held(getattr(FileStore, name), hold))


def held(put: Callable[..., object], hold: Path) -> Callable[..., object]:
    def wrapped(store: FileStore, key: str, *args: object, **kwargs: object) -> object:
        if hold.exists() and hold.read_text() in key:
            trace(f"held {key.rpartition('/')[2]}")
            eventually(lambda: not hold.exists(), timeout_s=LONGEST_WAIT_S)
        return put(store, key, *args, **kwargs)

    return wrapped


MOMENTS: dict[str, Callable[[], None]] = {
    "before the pop": lambda: signal_before(Leases, "claim"),
    "after the pop": lambda: signal_after(Leases, "claim"),
    "in an upload": lambda: signal_before(FileStore, "put"),
}
