"""What ranks can still tell when the fleet has to be ended and nobody raised: their stacks and their collectives.

The stacks come from a native signal handler, so a rank answers while its main thread sits in a C call and holds the
GIL. torch's flight recorder is written by a thread of Python, which needs the GIL for a moment. Both write into the
fleet's folder, beside the logs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from torch._C import _distributed_c10d

from worker.mgpu.placement import Backend

# A real-time signal: libraries use SIGUSR1 and SIGUSR2 for themselves.
_STACKS_SIGNAL = signal.SIGRTMIN + 7
# The handler reads the frames of all threads, also of those that run: the one that writes collectives is asked later.
STACKS_ALONE_S = 0.05
STACKS_LIMIT_S = 0.15  # how long an error waits for both
COLLECTIVES_LIMIT_S = 2.0  # how long a rank whose GIL is held lives on to write its record

# Ranks in lockstep are one collective apart, so the last few tell. torch's default of 2000 takes 3 MB of each rank.
_RECORDED_COLLECTIVES = "500"


def stacks_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stacks"


def collectives_file(folder: Path, rank: int) -> Path:
    """For torch's `torchfrtrace`: a common beginning, then the rank."""
    return Path(f"{_collectives_stem(folder)}{rank}")


def _collectives_stem(folder: Path) -> str:
    return str(folder / "collectives-rank")


# --- in a rank ---


def offer_stacks(folder: Path, rank: int) -> None:
    file = os.open(stacks_file(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    faulthandler.register(_STACKS_SIGNAL, file, all_threads=True)  # the descriptor stays open for good


def offer_collectives(folder: Path, rank: int, backend: Backend, requests: Connection) -> None:
    """Write the flight recorder's contents whenever `requests` gets a byte. NCCL's own watchdog writes there too."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", _RECORDED_COLLECTIVES)
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", _collectives_stem(folder))
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    dump = getattr(_distributed_c10d, "_dump_nccl_trace" if backend == "nccl" else "_dump_fr_trace", None)
    if dump is not None:
        arguments = (requests, collectives_file(folder, rank), dump)
        threading.Thread(target=_record_on_request, args=arguments, name="mgpu-record", daemon=True).start()


def _record_on_request(requests: Connection, file: Path, dump: Callable[..., bytes]) -> None:
    while os.read(requests.fileno(), 1):
        # Without the stack of each past collective: to find the names of their frames takes 5 s (torch 2.11).
        record = dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
        partial = file.with_suffix(".partial")
        partial.write_bytes(record)
        partial.rename(file)


# --- in the controller ---


def ask_for_stacks(pid: int) -> None:
    """Only of a rank that has offered them: the signal would end any other."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _STACKS_SIGNAL)


def ask_for_collectives(requests: Connection) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(requests.fileno(), b"r")
