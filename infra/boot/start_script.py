"""The start script of RunPod's images, which brings up SSH: an image with an entry point of its own has to call it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


@contextmanager
def running_script(path: Path) -> Iterator[None]:
    """Beside us, to our end. A machine of one's own has none."""
    script = _start(path) if path.is_file() else None
    try:
        yield
    finally:
        if script is not None:
            with suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            script.wait()


def _start(path: Path) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen([path], stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    except OSError as exc:
        log.warning("the start script cannot be run, so there is no SSH", path=str(path), why=str(exc))
        return None
