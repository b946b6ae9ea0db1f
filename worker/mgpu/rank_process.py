"""One rank process as its controller sees it: how it is spawned, what it last said, how it ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from multiprocessing.connection import Connection, Pipe

from worker.mgpu import cuda_ipc
from worker.mgpu.diagnosis import ask_for_collectives, ask_for_stacks, collectives_file
from worker.mgpu.errors import FailureKind, RankFailure
from worker.mgpu.link import Link
from worker.mgpu.logs import RankLog
from worker.mgpu.rank import RankEnds, rank_main
from worker.mgpu.reports import ErrorReport
from worker.mgpu.spawn import TiedProcess
from worker.mgpu.state import Phase
from worker.mgpu.tensors import Travelling
from worker.mgpu.world import RankPlan

_LOG_CHUNK_BYTES = 1 << 16


class RankProcess:
    def __init__(
        self,
        plan: RankPlan,
        setup: Travelling,
        alive: Connection,
        peers: tuple[socket.socket, ...],
        log: RankLog,
    ) -> None:
        self.rank = plan.rank
        self.phase = Phase.SPAWNED
        self.heard_at = time.monotonic()
        self._spawned_at = time.time()
        self.has_failed = False
        self.log = log
        self._evidence_folder = plan.evidence_folder
        control, rank_control = socket.socketpair()
        self.output, rank_output = Pipe(duplex=False)
        rank_requests, self._requests = Pipe(duplex=False)
        os.set_blocking(self.output.fileno(), False)
        self.link = Link(control)
        ends = RankEnds(rank_control, alive, rank_output, rank_requests, peers)
        self._process = TiedProcess(rank_main, (plan, setup, ends), name=f"mgpu-rank-{plan.rank}")
        try:
            self._process.start()
        except BaseException:  # an argument that does not pickle, say
            self._close_ends()
            raise
        finally:
            # Our copies of the rank's ends: while they are open, no end-of-file tells that the rank is gone.
            for end in (rank_control, rank_output, rank_requests):
                end.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.death = _death_descriptor(self.pid, self._process.sentinel)

    def read_log(self) -> bool:
        """Take some of what it printed; false once nothing can follow.

        One chunk a call: a rank that never stops printing must not keep the fleet's thread.
        """
        try:
            chunk = os.read(self.output.fileno(), _LOG_CHUNK_BYTES)
        except BlockingIOError:
            return True
        self.log.feed(chunk)
        return bool(chunk)

    def signal(self, number: signal.Signals) -> None:
        """To it and its own children: it leads a process group, unless it is still starting."""
        if self.phase is Phase.GONE:
            return
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, number)

    def ask_for_stacks(self) -> None:
        """For a file of `diagnosis`, as the next."""
        if self.phase not in (Phase.SPAWNED, Phase.GONE):
            ask_for_stacks(self.pid)

    def ask_for_collectives(self) -> None:
        if self.phase not in (Phase.SPAWNED, Phase.GONE):
            ask_for_collectives(self._requests)

    @property
    def has_told_its_collectives(self) -> bool:
        return self.phase is Phase.GONE or collectives_file(self._evidence_folder, self.rank).exists()

    def reap(self, within_s: float = 1.0) -> None:
        """After its death. What it left running in its process group goes too."""
        self._process.join(within_s)
        if not select.select([self.death], [], [], 0)[0]:
            return  # it survives
        self.phase = Phase.GONE
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        cuda_ipc.remove_leftovers(self.pid, spawned_at=self._spawned_at)

    def close(self) -> None:
        self._close_ends()
        os.close(self.death)
        with contextlib.suppress(ValueError):  # it still runs, or somebody else's wait() took its exit code
            self._process.close()

    def _close_ends(self) -> None:
        self.link.close()
        self.output.close()
        self._requests.close()
        self.log.close()

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
            text += (
                '; if its log names no other reason: a script needs `if __name__ == "__main__":` around what it does'
            )
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
