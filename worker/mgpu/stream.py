"""The results of one job, for the thread that dispatched it."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from worker.mgpu.errors import AsymmetricRunnerError, SymmetricRunnerError, WrongOwnerError
from worker.mgpu.job import Job, Said, conclude, terminal_of
from worker.mgpu.link import Kind
from worker.mgpu.state import State
from worker.mgpu.tensors import unpack

if TYPE_CHECKING:
    from worker.mgpu.controller import MGPUController
    from worker.mgpu.supervisor import Supervisor

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
        self._when_dropped = weakref.finalize(self, supervisor.note_dropped, job)
        self._when_dropped.atexit = False

    @property
    def job_id(self) -> int:
        return self._job.id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        """Raises Symmetric- or AsymmetricRunnerError at the end, or a FatalFleetError, then and ever after."""
        self._require_owner()
        self._supervisor.note_read(self._job)
        while not self._has_ended:
            said = self._await_next()
            if said.message.kind is not Kind.ITEM:
                self._note_end(said)
                continue
            self.last_rank = said.rank
            self._job.reading = said
            try:
                return unpack(said.message.body, said.message.view)
            except RuntimeError as error:
                self._note_loss(said, error)
        if self._fatal_error is not None:
            raise self._fatal_error
        raise StopIteration

    def drain(self) -> None:
        """Discard what is left and free the controller. Raises a fatal error if it was not raised before."""
        self._require_owner()
        while not self._has_ended:
            with contextlib.suppress(StopIteration, SymmetricRunnerError, AsymmetricRunnerError):
                next(self)

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

    def _await_next(self) -> Said:
        said = self._job.arrivals.get()
        if isinstance(said, Said):
            return said
        self._fatal_error = said
        self._end()
        raise said

    def _note_loss(self, said: Said, error: RuntimeError) -> None:
        """An item in the GPU memory of a rank that has died is gone. Raises what has any other reason."""
        if self._supervisor.state is State.RUNNING:
            raise error
        log.warning("job %d: an item of rank %d went with its memory: %s", self._job.id, said.rank, error)

    def _note_end(self, said: Said) -> None:
        """Raises once every rank has ended: StopIteration with the returned values, or what the refusals mean."""
        terminals = self._job.terminals
        terminals[said.rank] = terminal_of(said.rank, said.message)
        if len(terminals) < self._job.world_size:
            return
        self._end()
        in_order = [terminals[rank] for rank in sorted(terminals)]
        terminals.clear()
        raise StopIteration(conclude(self._job.id, in_order))

    def _end(self) -> None:
        self._has_ended = True
        self._when_dropped.detach()
        self._supervisor.release(self._job)
