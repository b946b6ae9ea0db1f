"""One rank process as its controller sees it: how it is spawned, what it last said, how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path

from worker.mgpu.diagnosis import ask_for_collectives, ask_for_stacks, collectives_file
from worker.mgpu.errors import FailureKind, RankFailure
from worker.mgpu.link import Link
from worker.mgpu.logs import RankLog
from worker.mgpu.rank import rank_main
from worker.mgpu.reports import ErrorReport
from worker.mgpu.state import Phase
from worker.mgpu.tensors import Travelling
from worker.mgpu.world import RankPlan

_LOG_CHUNK_BYTES = 1 << 16


class RankProcess:
    def __init__(self, context: SpawnContext, plan: RankPlan, setup: Travelling, alive: Connection, log: RankLog):
        self.rank = plan.rank
        self.phase = Phase.SPAWNED
        self.heard_at = time.monotonic()
        self.has_failed = False
        self.log = log
        self._evidence_folder = plan.evidence_folder
        ours, theirs = socket.socketpair()
        self.output, output_writer = context.Pipe(duplex=False)
        os.set_blocking(self.output.fileno(), False)
        self.link = Link(ours)
        arguments = (plan, setup, theirs, alive, output_writer)
        self._process = context.Process(target=rank_main, args=arguments, name=f"mgpu-rank-{plan.rank}")
        try:
            self._process.start()
        except BaseException:  # an argument that does not pickle, say
            self.link.close()
            self.output.close()
            log.close()
            raise
        finally:
            # Our copies of the rank's ends: while they are open, no end-of-file tells that the rank is gone.
            theirs.close()
            output_writer.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.death = _death_descriptor(self.pid, self._process.sentinel)

    def read_log(self) -> bool:
        """Take what it printed; false once nothing can follow."""
        try:
            while chunk := os.read(self.output.fileno(), _LOG_CHUNK_BYTES):
                self.log.feed(chunk)
        except BlockingIOError:
            return True
        return False

    def signal(self, number: signal.Signals) -> None:
        """To it and its own children: it leads a process group, unless it is still starting."""
        if self.phase is Phase.GONE:
            return
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, number)

    def dump_stacks(self) -> None:
        if self.phase not in (Phase.SPAWNED, Phase.GONE):
            ask_for_stacks(self.pid)

    def dump_collectives(self) -> Path | None:
        """Where NCCL's flight recorder will write, if this rank has one."""
        is_heard = ask_for_collectives(self._evidence_folder, self.rank)
        return collectives_file(self._evidence_folder, self.rank) if is_heard else None

    def reap(self, within_s: float = 1.0) -> None:
        """After its death. What it left running in its process group goes too."""
        self._process.join(within_s)
        self.phase = Phase.GONE
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self.link.close()
        self.output.close()
        self.log.close()
        os.close(self.death)
        if self.phase is Phase.GONE:
            self._process.close()

    def failure_from_report(self, report: ErrorReport) -> RankFailure:
        return RankFailure(
            self.rank, self.pid, self.phase, report.cause_type, report.text, report.traceback,
            failed_at=report.failed_at, kind=report.kind,
        )  # fmt: skip

    def failure_from_death(self, phase: Phase) -> RankFailure:
        """`phase` is what it did when it died."""
        code = self._process.exitcode
        cause_type, text = _explain_exit(code)
        if phase is Phase.SPAWNED and code == 1:
            text += '; a script that starts a controller needs `if __name__ == "__main__":` around it'
        return RankFailure(
            self.rank, self.pid, phase, cause_type, text,
            log_tail=tuple(self.log.tail), failed_at=time.monotonic(), kind=FailureKind.DIED,
        )  # fmt: skip


def _death_descriptor(pid: int, sentinel: int) -> int:
    """Readable once the process has ended. A descriptor of our own, to close."""
    try:
        # The sentinel is a pipe that the rank's own forked children keep open: it can miss the rank's death.
        return os.pidfd_open(pid)
    except OSError:  # a kernel or a sandbox without it
        return os.dup(sentinel)


def _explain_exit(code: int | None) -> tuple[str, str]:
    if code is None:
        return "unknown exit", "its exit code was taken by somebody else's wait()"
    if code >= 0:
        return f"exit code {code}", "the process ended by itself"
    name = signal.Signals(-code).name
    hint = "; not sent by the controller, possibly the OOM killer" if name == "SIGKILL" else ""
    return name, f"the process was ended by a signal{hint}"
