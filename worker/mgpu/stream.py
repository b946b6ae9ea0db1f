"""The results of one job, for the thread that dispatched it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from worker.mgpu.errors import AsymmetricRunnerError, SymmetricRunnerError, WrongOwnerError
from worker.mgpu.job import Job, Said, Terminal, conclude, terminal_of
from worker.mgpu.link import Kind
from worker.mgpu.tensors import unpack

if TYPE_CHECKING:
    from worker.mgpu.controller import MGPUController
    from worker.mgpu.supervisor import Supervisor


class Stream(Iterator[object]):
    """One element per yield of any rank, as it arrives. Ends with the list of the ranks' return values.

    The controller is busy until this stream was read to its end, or drained.
    """

    def __init__(self, job: Job, supervisor: Supervisor, controller: MGPUController) -> None:
        self.last_rank: int | None = None  # who yielded the element that came last
        self._job = job
        self._supervisor = supervisor
        self._controller = controller  # a dropped controller stops its fleet
        self._owner = threading.current_thread()
        self._terminals: dict[int, Terminal] = {}
        self._has_ended = False
        self._fatal_error: BaseException | None = None

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
            if said.message.kind is Kind.ITEM:
                self.last_rank = said.rank
                self._job.reading = said
                return unpack(said.message.body, said.message.view)
            self._note_end(said)
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
        self._owner = owner

    def request_stop(self, reason: str = "stop requested") -> None:
        """Ask the runner to end early; it finds out in its next stop_requested(). Any thread may call this."""
        if not reason:
            raise ValueError("a reason is needed: the runner sees it as its stop_reason")
        self._supervisor.request_stop(self._job, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain()

    def _require_owner(self) -> None:
        current = threading.current_thread()
        if current is not self._owner:
            raise WrongOwnerError(
                f"job {self._job.id} belongs to thread {self._owner.name!r}; {current.name!r} may not read its stream"
            )

    def _await_next(self) -> Said:
        said = self._job.arrivals.get()
        if isinstance(said, Said):
            return said
        self._has_ended = True
        self._fatal_error = said
        self._supervisor.release(self._job)
        raise said

    def _note_end(self, said: Said) -> None:
        """Raises once every rank has ended: StopIteration with the returned values, or what the refusals mean."""
        self._terminals[said.rank] = terminal_of(said.rank, said.message)
        if len(self._terminals) < self._job.world_size:
            return
        self._has_ended = True
        self._supervisor.release(self._job)
        terminals = [self._terminals[rank] for rank in range(self._job.world_size)]
        self._terminals.clear()
        raise StopIteration(conclude(self._job.id, terminals))
