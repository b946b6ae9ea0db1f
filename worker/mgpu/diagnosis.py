"""What ranks can still tell when the fleet has to be ended and nobody raised: their stacks, and NCCL's own record.

Both come from native code, so a rank answers while its main thread sits in a collective or a C call. Each writes
into the fleet's folder, beside the logs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

# A real-time signal: libraries use SIGUSR1 and SIGUSR2 for themselves.
STACKS_SIGNAL = signal.SIGRTMIN + 7
STACKS_LIMIT_S = 0.15  # how long an error waits for them
COLLECTIVES_LIMIT_S = 2.0  # NCCL's monitor thread looks at its pipe once a second, then writes
_RECORDED_COLLECTIVES = 2000

# Newer name first; a torch that knows only the older one is served too.
_RECORD_SIZE_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_RECORD_FILE_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def stacks_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stacks"


def collectives_file(folder: Path, rank: int) -> Path:
    """For torch's `torchfrtrace`."""
    return Path(f"{_collectives_stem(folder)}{rank}")


def _collectives_stem(folder: Path) -> str:
    return str(folder / "nccl-rank")


# --- in a rank ---


def offer_stacks(folder: Path, rank: int) -> None:
    file = os.open(stacks_file(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    faulthandler.register(STACKS_SIGNAL, file, all_threads=True)  # the descriptor stays open for good


def offer_collectives(folder: Path) -> None:
    """Before the process group exists. What the user has set stays."""
    stem = _collectives_stem(folder)
    _set_unless_any_is(_RECORD_SIZE_NAMES, str(_RECORDED_COLLECTIVES))
    _set_unless_any_is(_RECORD_FILE_NAMES, stem)
    _set_unless_any_is(("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",), stem)
    _set_unless_any_is(("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1")


def _set_unless_any_is(names: tuple[str, ...], value: str) -> None:
    if not any(name in os.environ for name in names):
        os.environ.update(dict.fromkeys(names, value))


# --- in the controller ---


def ask_for_stacks(pid: int) -> None:
    """Only of a rank that has offered them: the signal would end any other."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACKS_SIGNAL)


def ask_for_collectives(folder: Path, rank: int) -> bool:
    """Whether the rank has somebody who listens."""
    try:
        pipe = os.open(f"{collectives_file(folder, rank)}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no NCCL there, not yet there, or gone
        return False
    with os.fdopen(pipe, "wb", buffering=0) as stream, contextlib.suppress(OSError):
        stream.write(b"1")
    return True
