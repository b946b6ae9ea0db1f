"""A worker as a supervisor keeps it: whenever its process ends, however, there is soon another."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.servers import DIES_WITH_PARENT

REPOSITORY = Path(__file__).parents[2]
PAUSE_S = 0.2  # before it is started again
END_LIMIT_S = 30.0  # from SIGTERM to SIGKILL
GIVE_UP = (2, 78)  # exit codes after which it is not started again: wrong usage, and no fleet time and again
READY, NOT_READY = b'"ready for jobs"', (b'"restarting"', b'"starting the fleet"')  # in its log


class SupervisedWorker:
    """`h3render worker` on a core of its own, if there are enough: ranks take all that they may run on."""

    def __init__(self, number: int, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        cores = sorted(os.sched_getaffinity(0))
        pinned = ("taskset", "--cpu-list", str(cores[number % len(cores)]))
        self._command = [*DIES_WITH_PARENT, *pinned, sys.executable, "-m", "h3render", "worker", *arguments]
        self._environment, self._log = environment, log
        self.name = f"worker-{number}"
        self.exit_codes: list[int] = []  # negative: of a signal
        self._log_start = 0  # of the process that runs now
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name=self.name, daemon=True)
        self._thread.start()

    def send(self, signum: signal.Signals) -> None:
        """To the worker alone."""
        with self._lock:
            if self._process is not None:
                self._process.send_signal(signum)

    def rank_pids(self) -> list[int]:
        """Its children that are no helpers of Python."""
        with self._lock:
            process = self._process
        return [] if process is None else [pid for pid in _children(process.pid) if _is_rank(pid)]

    def is_ready(self) -> bool:
        text = self._read_log()
        return self._is_running() and text.rfind(READY) > max(text.rfind(mark) for mark in NOT_READY)

    def queue_name(self) -> str:
        """By which the queue knows the process that runs now; empty until it is ready."""
        lines = [line for line in self._read_log().split(b"\n")[:-1] if READY in line]
        return str(json.loads(lines[-1])["worker"]) if lines and self.is_ready() else ""

    def is_given_up(self) -> bool:
        return self.exit_codes[-1:] in ([code] for code in GIVE_UP)

    def ask_to_end(self) -> None:
        """For good."""
        self._is_over.set()
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)

    def await_end(self) -> None:
        """The last exit code tells whether it went by itself."""
        self._thread.join(END_LIMIT_S)
        self.send(signal.SIGKILL)
        self._thread.join()

    def _supervise(self) -> None:
        """In this thread alone: the kernel ends the worker with the thread that started it."""
        with self._log.open("ab") as log:
            while not self.is_given_up() and (process := self._start(log.fileno())) is not None:
                self.exit_codes.append(process.wait())
                self._is_over.wait(PAUSE_S)

    def _start(self, log: int) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_over.is_set():
                return None
            self._log_start = self._log.stat().st_size
            self._process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            return self._process

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _read_log(self) -> bytes:
        if not self._log.exists():
            return b""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()


def end_together(workers: Sequence[SupervisedWorker]) -> None:
    """Each has something to finish."""
    for worker in workers:
        worker.ask_to_end()
    for worker in workers:
        worker.await_end()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _is_rank(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
