"""The results of one job, for the thread that dispatched it."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from worker.mgpu.errors import AsymmetricRunnerError, SymmetricRunnerError, UnreadableResultError, WrongOwnerError
from worker.mgpu.job import Job, Said, conclude, open_value
from worker.mgpu.link import Kind
from worker.mgpu.state import State

if TYPE_CHECKING:
    from worker.mgpu.controller import MGPUController
    from worker.mgpu.supervisor import Supervisor

SIGNAL_DELAY_S = 0.5  # at most, of a signal handler of the thread that reads

log = logging.getLogger(__name__)


class Stream(Iterator[object]):
    """One element per yield of any rank, as it arrives. Ends with the list of the ranks' return values.

    The controller is busy until this stream was read to its end, or drained.
    """

    def __init__(self, job: Job, supervisor: Supervisor, controller: MGPUController) -> None:
        self.last_rank: int | None = None  # who yielded the element that came last
        self._job = job
        self._supervisor = supervisor
        self._controller = controller  # a dropped controller stops its fleet
        self._has_ended = False
        self._fatal_error: BaseException | None = None
        self._when_dropped = weakref.finalize(self, supervisor.note_dropped, job, job.claim)
        self._when_dropped.atexit = False

    @property
    def job_id(self) -> int:
        return self._job.id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        """Raises Symmetric- or AsymmetricRunnerError at the end, or a FatalFleetError, then and ever after.

        Raises UnreadableResultError for an element that cannot be rebuilt in this process; the next one can be read.
        """
        while (said := self._next_item()) is not None:
            self.last_rank = said.rank
            try:
                return open_value(said)
            except RuntimeError as error:
                self._note_loss(said, error)
        if self._fatal_error is not None:
            raise self._fatal_error.with_traceback(None)
        raise StopIteration

    def drain(self) -> None:
        """Discard what is left and free the controller. Raises a fatal error if it was not raised before."""
        with contextlib.suppress(StopIteration, SymmetricRunnerError, AsymmetricRunnerError, UnreadableResultError):
            while (said := self._next_item()) is not None:
                self._release(said)

    def transfer(self, owner: threading.Thread) -> None:
        """Make another thread the owner, instead of this one."""
        self._require_owner()
        self._job.owner = owner

    def request_stop(self, reason: str = "stop requested") -> None:
        """Ask the runner to end early; it finds out in its next stop_requested(). Any thread may call this."""
        if not reason:
            raise ValueError("a reason is needed: the runner sees it as its stop_reason")
        self._supervisor.require_own_process()
        self._supervisor.request_stop(self._job, reason)

    def condemn(self, reason: str) -> None:
        """End the fleet because the job does not go on: it fails with a FleetDesyncError that says what the ranks do.

        Any thread may call this. A job that has ended is left alone.
        """
        self._supervisor.condemn(self._job, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain()

    def _require_owner(self) -> None:
        self._supervisor.require_own_process()
        current, owner = threading.current_thread(), self._job.owner
        if current is not owner:
            raise WrongOwnerError(
                f"job {self._job.id} belongs to thread {owner.name!r}; {current.name!r} may not read its stream"
            )

    def _next_item(self) -> Said | None:
        """None once the stream has ended. Raises its end when it comes."""
        self._require_owner()
        self._supervisor.note_read(self._job)
        while not self._has_ended:
            said = self._await_arrival()
            if not isinstance(said, Said):
                self._fatal_error = said
                self._end()
                raise said
            if said.message.kind is Kind.ITEM:
                self._job.reading = said
                return said
            self._note_end(said)
        return None

    def _await_arrival(self) -> Said | BaseException:
        # In turns: a signal that comes just before a wait without a limit is handled only when that wait is over.
        while True:
            with contextlib.suppress(queue.Empty):
                return self._job.arrivals.get(timeout=SIGNAL_DELAY_S)

    def _release(self, said: Said) -> None:
        """Unread. CUDA memory is the rank's until somebody has opened it; everything else is simply dropped."""
        if said.message.holds_cuda:
            with contextlib.suppress(RuntimeError, UnreadableResultError):
                open_value(said)

    def _note_loss(self, said: Said, error: RuntimeError) -> None:
        """An item in the GPU memory of a rank that has died is gone. Raises what has any other reason."""
        if self._supervisor.state is State.RUNNING:
            raise error
        log.warning("job %d: an item of rank %d went with its memory: %s", self._job.id, said.rank, error)

    def _note_end(self, said: Said) -> None:
        """Raises once every rank has ended: StopIteration with the returned values, or what the refusals mean."""
        ends = self._job.ends_read
        ends[said.rank] = said
        if len(ends) == self._job.world_size:
            # First: whatever the ends turn out to be, the controller is free.
            self._end()
            raise StopIteration(conclude(self._job.id, [ends[rank] for rank in sorted(ends)]))

    def _end(self) -> None:
        self._has_ended = True
        self._when_dropped.detach()
        self._supervisor.release(self._job)
