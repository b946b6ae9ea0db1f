"""What the kernel knows about a process, from /proc."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Process:
    """A process, not a number: a process id may be given away again, its start time tells."""

    pid: int
    started_at: str

    @classmethod
    def of(cls, pid: int) -> "Process":
        return cls(pid, _stat(pid)[19])

    def is_running(self) -> bool:
        try:
            fields = _stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return fields[0] not in ("Z", "X") and fields[19] == self.started_at


def await_exit(processes: Sequence[Process], limit_s: float) -> tuple[Process, ...]:
    """Wait until all have ended; those that have not are killed and returned."""
    deadline = time.monotonic() + limit_s
    while running := tuple(process for process in processes if process.is_running()):
        if time.monotonic() > deadline:
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            return running
        time.sleep(POLL_S)
    return ()


def cpu_seconds(pid: int) -> float:
    """What its threads have used so far. In nanoseconds: /proc/PID/stat counts in hundredths of a second."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def count_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def count_shared_memory() -> int:
    return len(list(Path("/dev/shm").iterdir()))  # noqa: S108  # counted, not written to


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second, a name, may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
