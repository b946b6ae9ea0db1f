"""What becomes of a notice after a try: delivered, tried again, or given up. Knows no network and no clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

LONGEST_ASKED_S = 3600.0  # that a receiver may put us off


@dataclass(frozen=True, slots=True)
class Answered:
    """The receiver has said something."""

    status: int
    retry_after_s: float = 0.0

    def __str__(self) -> str:
        return f"status {self.status}"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """It could not be reached, or said nothing in time."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Refused:
    """It was not called: it must not, or cannot be."""

    reason: str

    def __str__(self) -> str:
        return self.reason


Outcome = Answered | Unanswered | Refused  # of one try


@dataclass(frozen=True, slots=True)
class Delivered:
    status: int


@dataclass(frozen=True, slots=True)
class Again:
    after_s: float
    reason: str
    is_counted: bool = True  # as a try: not if the receiver had no part in it


@dataclass(frozen=True, slots=True)
class GivenUp:
    reason: str


Verdict = Delivered | Again | GivenUp


def judge(outcome: Outcome, failures: int, backoff_s: Sequence[float]) -> Verdict:
    """What to do after a try, before which so many had failed."""
    if isinstance(outcome, Refused):
        return GivenUp(str(outcome))
    if isinstance(outcome, Answered) and 200 <= outcome.status < 300:
        return Delivered(outcome.status)
    if isinstance(outcome, Answered) and outcome.status == HTTPStatus.GONE:
        return GivenUp("status 410: the receiver wants no more")
    if failures >= len(backoff_s):
        return GivenUp(f"{outcome}, {failures + 1} tries")
    asked_s = outcome.retry_after_s if isinstance(outcome, Answered) else 0.0
    return Again(max(backoff_s[failures], min(asked_s, LONGEST_ASKED_S)), str(outcome))


def read_retry_after(header: str, now: datetime) -> float:
    """Seconds that a receiver asks for, 0 if it says nothing that one could read."""
    if header.isascii() and header.isdecimal():
        return min(float(header), LONGEST_ASKED_S)
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    # A date that names no zone is one of UTC.
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - now).total_seconds())
