"""Why a fleet is being ended, and the error that comes of it. Knows no process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.mgpu.errors import (
    FailureKind,
    FatalFleetError,
    FleetDesyncError,
    JobTimeoutError,
    RankDiedError,
    RankFailure,
    RankOutOfMemoryError,
    RunnerFailedError,
    StartTimeoutError,
)

# How long a rank's death may go unseen while its peers' collectives already break.
_DEATH_NOTICE_S = 0.05

_ERROR_TYPES: dict[FailureKind, type[FatalFleetError]] = {
    FailureKind.RAISED: RunnerFailedError,
    FailureKind.OUT_OF_MEMORY: RankOutOfMemoryError,
    FailureKind.DIED: RankDiedError,
    FailureKind.DIVERGED: FleetDesyncError,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error_type` is None if the first failure decides it."""

    error_type: type[FatalFleetError] | None
    text: str = ""
    cause: BaseException | None = None

    @property
    def needs_stacks(self) -> bool:
        """Nobody raised or died: only what the ranks are doing explains it."""
        riddles = (JobTimeoutError, FleetDesyncError, StartTimeoutError)
        return self.error_type is not None and issubclass(self.error_type, riddles)

    def to_error(self, failures: Sequence[RankFailure], evidence: Sequence[Path]) -> FatalFleetError:
        failures = _causes_first(failures)
        error_type = self.error_type or _ERROR_TYPES[failures[0].kind]
        text = self.text or f"the fleet is gone because of rank {failures[0].rank}; construct a new controller"
        error = error_type(text, failures, evidence)
        error.__cause__ = self.cause
        return error


def _causes_first(failures: Sequence[RankFailure]) -> list[RankFailure]:
    """By time; but a death that is seen just after an exception came before it, and explains it."""
    return sorted(
        failures, key=lambda failure: failure.failed_at - _DEATH_NOTICE_S * (failure.kind is FailureKind.DIED)
    )
