"""One job: what the ranks said about it, and what their ends amount to. Knows no process and no thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from worker.mgpu.errors import AsymmetricRunnerError, RunnerError, SymmetricRunnerError, UnreadableResultError
from worker.mgpu.inputs import EncodedJob
from worker.mgpu.link import TERMINALS, Kind, Message
from worker.mgpu.reports import read_report, rebuild_runner_error
from worker.mgpu.tensors import unpack

log = logging.getLogger(__name__)

Terminal = RunnerError | StopIteration


@dataclass(frozen=True, slots=True)
class Said:
    rank: int
    message: Message


@dataclass(slots=True)
class Job:
    """In flight. Filled by the fleet's thread, emptied by the owner of its stream."""

    id: int
    world_size: int
    inputs: EncodedJob | None = None
    owner: threading.Thread = field(default_factory=threading.current_thread)  # who alone may read its stream
    claim: object = field(default_factory=object)  # of the stream that may read it; reclaim() makes another
    is_dropped: bool = False  # that stream was, before its end
    arrivals: SimpleQueue[Said | BaseException] = field(default_factory=SimpleQueue)
    ends: dict[int, Message] = field(default_factory=dict)  # of the ranks that have ended
    yields: dict[int, int] = field(default_factory=dict)  # how many items each rank has yielded
    # The two below are written by the owner's thread and the fleet's, each its own, without a lock: whoever writes
    # second sees the other's value. That both may tell the rank does no harm.
    reads: dict[int, int] = field(default_factory=dict)  # how many items of each rank the owner is done with
    waits: dict[int, int] = field(default_factory=dict)  # ranks that go on when the owner is done with that item
    reading: Said | None = None  # the item that the owner has in hand
    ends_read: dict[int, Said] = field(default_factory=dict)  # of the ranks whose end the owner has read

    @property
    def has_ended(self) -> bool:
        return len(self.ends) == self.world_size

    @property
    def unended(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in self.ends]

    @property
    def waits_for_owner(self) -> bool:
        return any(self.reads.get(rank, 0) <= sequence for rank, sequence in self.waits.copy().items())

    @property
    def is_abandoned(self) -> bool:
        """Nobody can read it any more, unless somebody reclaims it."""
        return self.is_dropped or not self.owner.is_alive()

    @property
    def has_no_reader(self) -> bool:
        """Asked by the thread that shuts down: it will not come back to read."""
        return self.is_abandoned or self.owner is threading.current_thread()

    def take(self, rank: int, message: Message) -> None:
        """Raises ProtocolError for a message that cannot belong here."""
        expected = (self.id, self.yields.get(rank, 0))
        if rank in self.ends or (message.job_id, message.sequence) != expected:
            got = (message.job_id, message.sequence)
            raise ProtocolError(f"rank {rank} sent (job, sequence) {got} while {expected} was expected")
        if message.kind in TERMINALS:
            self.ends[rank] = message
        else:
            self.yields[rank] = message.sequence + 1
        self.arrivals.put(Said(rank, message))

    def note_wait(self, rank: int, message: Message) -> bool:
        """Whether the rank may go on at once. Raises ProtocolError for one that waits for nothing."""
        if message.job_id != self.id or message.sequence >= self.yields.get(rank, 0):
            raise ProtocolError(
                f"rank {rank} waits for item {message.sequence} of job {message.job_id}: not one of its"
            )
        self.waits[rank] = message.sequence
        return self.reads.get(rank, 0) > message.sequence

    def note_read(self) -> Said | None:
        """The owner lets go of what it has in hand; returned if its rank waits for that."""
        said, self.reading = self.reading, None
        if said is None:
            return None
        self.reads[said.rank] = said.message.sequence + 1
        return said if self.waits.get(said.rank) == said.message.sequence else None

    def fail(self, error: BaseException) -> None:
        """Whoever reads gets the error, after what has arrived."""
        self.arrivals.put(error)

    def refusals(self) -> list[str]:
        """In words, for a fatal error that came on top of them."""
        refused = {rank: read_report(end.body) for rank, end in self.ends.items() if end.kind is Kind.REFUSED}
        return [f"rank {rank} refused: {report.cause_type}: {report.text}" for rank, report in refused.items()]


class ProtocolError(Exception):
    """A rank speaks of another job, or has skipped or repeated a message."""


def open_value(said: Said) -> object:
    """Raises UnreadableResultError, or RuntimeError for GPU memory that is no more."""
    try:
        return unpack(said.message.body, said.message.view)
    except RuntimeError:
        raise
    except Exception as error:  # a class of the runner's, with a constructor of its own, say
        text = f"what rank {said.rank} sent cannot be rebuilt in this process: {type(error).__name__}: {error}"
        raise UnreadableResultError(text) from error


def conclude(job_id: int, ends: Sequence[Said]) -> list[object]:
    """The values that the ranks returned, in rank order. Raises if any of them refused the job."""
    terminals = [_terminal_of(end) for end in ends]
    errors = [terminal for terminal in terminals if isinstance(terminal, RunnerError)]
    if not errors:
        return [terminal.value for terminal in terminals if isinstance(terminal, StopIteration)]
    if len(errors) == len(terminals):
        raise _symmetric(job_id, errors)
    raise _asymmetric(job_id, terminals)


def _terminal_of(end: Said) -> Terminal:
    if end.message.kind is Kind.REFUSED:
        return rebuild_runner_error(end.rank, read_report(end.message.body))
    return StopIteration(open_value(end))


def _symmetric(job_id: int, errors: Sequence[RunnerError]) -> SymmetricRunnerError:
    identical = len({(error.cause_type, str(error)) for error in errors}) == 1
    if not identical:
        log.warning("job %d: all ranks refused, but not alike: %s", job_id, [str(error) for error in errors])
    return SymmetricRunnerError(str(errors[0]), errors, identical=identical)


def _asymmetric(job_id: int, terminals: Sequence[Terminal]) -> AsymmetricRunnerError:
    told = [
        f"rank {rank} raised {terminal.cause_type}: {terminal}"
        for rank, terminal in enumerate(terminals)
        if isinstance(terminal, RunnerError)
    ]
    finished = [rank for rank, terminal in enumerate(terminals) if isinstance(terminal, StopIteration)]
    text = f"job {job_id}: {'; '.join(told)}; but rank {', '.join(map(str, finished))} finished"
    log.error("%s; with a collective in between this is a hang", text)
    return AsymmetricRunnerError(text, terminals)
