"""Which way NCCL moves data between GPUs, from its own log: it says so nowhere else."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_FILE")
# "... Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
_CHANNEL = re.compile(r"Channel \S+ : .* via (.+?)\s*$", re.MULTILINE)


@contextmanager
def logging_nccl() -> Iterator[Callable[[], list[str] | None]]:
    """Let processes that are started within log. Gives a function that tells the transports chosen so far.

    It tells None if there is no log: on the CPU, or if the user has NCCL log for a purpose of their own.
    """
    if any(name in os.environ for name in _VARIABLES):
        yield lambda: None
        return
    with TemporaryDirectory(prefix="h3-nccl-") as folder:
        os.environ.update(zip(_VARIABLES, ("INFO", f"{folder}/%p.log"), strict=True))
        try:
            yield lambda: read_transports(Path(folder))
        finally:
            for name in _VARIABLES:
                del os.environ[name]


def read_transports(folder: Path) -> list[str] | None:
    logs = [path.read_text(errors="replace") for path in folder.iterdir()]
    return find_transports("\n".join(logs)) if logs else None


def find_transports(log: str) -> list[str]:
    """The distinct ones, sorted; none of a rank alone."""
    return sorted(set(_CHANNEL.findall(log)))
