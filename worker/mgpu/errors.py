"""What the controller raises, and what a runner may raise. The class carries the decision; nobody reads texts.

RuntimeError
├── ControllerStateError       the call does not fit the controller's state; nothing was disturbed
│   ├── ControllerNotStartedError
│   ├── ControllerAlreadyStartedError
│   ├── ControllerBusyError        a job is in flight
│   ├── ControllerDeadError        poisoned; its cause is the fatal error
│   ├── ControllerShutdownError    shut down, by this thread or another
│   ├── ControllerForkedError      this process is a fork of the one that owns the fleet
│   └── WrongOwnerError            another thread owns the stream
└── FatalFleetError            the rank processes are gone: construct a new controller
    ├── RunnerFailedError          a rank raised something unexpected
    │   └── RankOutOfMemoryError       namely that it had no memory left, on its GPU or at all
    ├── RankDiedError              a rank process ended by itself
    ├── FleetDesyncError           ranks no longer do the same thing
    ├── JobTimeoutError            also a TimeoutError
    └── StartError                 a rank raised or died before the fleet was ready
        └── StartTimeoutError          also a TimeoutError
Exception
├── RunnerError                raised by a runner that refuses its input, on every rank alike
├── SymmetricRunnerError       every rank refused: the fleet is fine, fix the input
├── AsymmetricRunnerError      some refused and some finished: the fleet lives, but a hang was near
└── UnreadableResultError      what a rank sent cannot be rebuilt here; the fleet is fine
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class FailureKind(StrEnum):
    RAISED = "raised"
    OUT_OF_MEMORY = "ran out of memory"
    DIED = "died"
    DIVERGED = "diverged"  # from its peers, as the lockstep check saw


@dataclass(frozen=True, slots=True)
class RankFailure:
    """What went wrong on one rank, in text: the original exception may not survive the way here."""

    rank: int
    pid: int | None
    phase: str  # what the rank last said it was doing
    cause_type: str  # name of the exception's type, of the signal, or "exit code 3"
    text: str
    traceback: str = ""
    log_tail: tuple[str, ...] = ()
    failed_at: float = 0.0  # time.monotonic(), one clock for all processes of a machine
    kind: FailureKind = FailureKind.RAISED

    def describe(self) -> str:
        who = f"rank {self.rank} (pid {self.pid}) {self.kind} in phase {self.phase}"
        lines = [f"{who}: {self.cause_type}: {self.text}"]
        if self.traceback:
            lines.append(self.traceback.rstrip())
        if self.log_tail:
            lines += ["its last log lines:", *(f"  {line}" for line in self.log_tail)]
        return "\n".join(lines)


class ControllerStateError(RuntimeError):
    """The call does not fit the controller's state."""


class ControllerNotStartedError(ControllerStateError):
    """No fleet yet: call start()."""


class ControllerAlreadyStartedError(ControllerStateError):
    """start() was called on a controller that has a fleet, or is getting one."""


class ControllerBusyError(ControllerStateError):
    """Another job is in flight until its owner has read its end, or drained it."""

    def __init__(self, text: str, job_id: int | None = None) -> None:
        super().__init__(text)
        self.job_id = job_id


class ControllerDeadError(ControllerStateError):
    """The controller is poisoned; `__cause__` is the fatal error. Construct a new one."""


class ControllerShutdownError(ControllerStateError):
    """The controller was shut down."""


class ControllerForkedError(ControllerStateError):
    """The controller belongs to the process that forked this one. Construct one here, after the fork."""


class WrongOwnerError(ControllerStateError):
    """Only the thread that dispatched a job may iterate or drain its stream."""


class FatalFleetError(RuntimeError):
    """The fleet is gone, or being killed.

    failures  what is known per rank, the first cause first
    evidence  files that tell more, in one folder that stays: the ranks' logs, their stacks (`rankN.stacks`), torch's
              flight recorder (`collectives-rankN`); one that comes later than the error is there after shutdown()
    """

    def __init__(self, text: str, failures: Sequence[RankFailure] = (), evidence: Sequence[Path] = ()) -> None:
        super().__init__("\n".join([text, *(failure.describe() for failure in failures), *_list(evidence)]))
        self.failures = tuple(failures)
        self.evidence = tuple(evidence)

    @property
    def primary(self) -> RankFailure | None:
        return self.failures[0] if self.failures else None

    @property
    def rank(self) -> int | None:
        return self.primary.rank if self.primary else None

    @property
    def pid(self) -> int | None:
        return self.primary.pid if self.primary else None

    @property
    def cause_type(self) -> str | None:
        return self.primary.cause_type if self.primary else None

    @property
    def remote_traceback(self) -> str:
        return self.primary.traceback if self.primary else ""


def _list(evidence: Sequence[Path]) -> list[str]:
    return [f"evidence in {evidence[0].parent}: {', '.join(path.name for path in evidence)}"] if evidence else []


class RunnerFailedError(FatalFleetError):
    """A rank raised something that is neither a RunnerError nor a ValueError."""


class RankOutOfMemoryError(RunnerFailedError):
    """A rank had no memory left. A runner that can go on refuses instead: RunnerError, on every rank."""


class RankDiedError(FatalFleetError):
    """A rank process ended by itself: killed, crashed or exited, with any exit code."""


class FleetDesyncError(FatalFleetError):
    """Ranks no longer do the same thing: a collective can never complete."""


class JobTimeoutError(FatalFleetError, TimeoutError):
    """The job did not end on every rank within its timeout."""


class StartError(FatalFleetError):
    """A rank raised or died before the fleet was ready. Nothing is left of the fleet."""


class StartTimeoutError(StartError, TimeoutError):
    """Some ranks were not ready in time."""


class RunnerError(Exception):
    """Raised by a runner to refuse its input: on every rank alike, and outside any collective.

    As an element of a Symmetric- or AsymmetricRunnerError it also says where it came from.
    """

    rank: int | None = None
    cause_type: str | None = None  # the type that was raised, e.g. "ValueError"
    remote_traceback: str = ""


class SymmetricRunnerError(Exception):
    """Every rank refused the job. The fleet is fine: fix the input and try again."""

    def __init__(self, text: str, errors: Sequence[RunnerError] = (), *, identical: bool = True) -> None:
        super().__init__(text)
        self.errors = list(errors)  # in rank order
        self.identical = identical


class AsymmetricRunnerError(Exception):
    """Some ranks refused the job and the others finished it: with a collective in between it had hung.

    `terminals` holds per rank its RunnerError, or a StopIteration with the value it returned.
    """

    def __init__(self, text: str, terminals: Sequence[RunnerError | StopIteration] = ()) -> None:
        super().__init__(text)
        self.terminals = list(terminals)


class UnreadableResultError(Exception):
    """A value that a rank yielded or returned pickles there, but does not unpickle here."""
