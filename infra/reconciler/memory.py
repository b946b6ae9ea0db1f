"""What a reconciler has to know from one look to the next, also from one process to the next. Kept as JSON."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal, Self

from pydantic import AwareDatetime, Field

from infra.reconciler.kept_model import Kept

BACKOFF_MIN = (1, 2, 4, 8, 15)  # after so many refusals of a data center, one after the other
FAILURES, WITHIN_S = 3, 900.0  # so many in so long, and a pause begins
PAUSE_S = 900.0
AVOIDED_S = 1800.0  # a data center whose machine was not fit
BOOTS_KEPT = 20
BOOT_SHARE = 0.9  # of the boots that were measured took no longer than the one that is reckoned with


class Avoided(Kept):
    """A data center that is not tried for a while."""

    until: AwareDatetime
    refusals: int = 0  # one after the other
    why: str = ""


class Failure(Kept):
    """A pod that never served, or stopped to."""

    at: AwareDatetime
    name: str
    data_center: str
    why: str


class Ending(Kept):
    """A pod whose end was asked for, and has not come."""

    since: AwareDatetime
    asked: int
    again_at: AwareDatetime


class Memory(Kept):
    """All of it. Every change is a new one."""

    version: Literal[1] = 1
    idle_since: dict[str, AwareDatetime] = Field(default_factory=dict)  # by the pod's name
    booted: tuple[str, ...] = ()  # names of pods whose worker was ready once
    boots_s: tuple[float, ...] = ()  # from order to ready
    raised_at: AwareDatetime | None = None
    surplus_since: AwareDatetime | None = None
    avoided: dict[str, Avoided] = Field(default_factory=dict)  # by data center
    failures: tuple[Failure, ...] = ()
    paused_until: AwareDatetime | None = None  # after too many failures; then one pod shows whether all is well
    is_probing: bool = False
    stopped: str = ""  # why no pod is ordered until a person has looked: no money, no right
    endings: dict[str, Ending] = Field(default_factory=dict)

    def with_(self, **changes: object) -> Self:
        return self.model_copy(update=changes)

    # --- what is reckoned with

    def boot_s(self, else_s: float) -> float:
        """Of the slowest but a few of the boots that were measured."""
        if len(self.boots_s) < FAILURES:
            return else_s
        return sorted(self.boots_s)[min(len(self.boots_s) - 1, int(BOOT_SHARE * len(self.boots_s)))]

    def avoided_at(self, now: datetime) -> dict[str, Avoided]:
        """The data centers that are not tried yet."""
        return {place: avoided for place, avoided in self.avoided.items() if avoided.until > now}

    def may_try(self, data_center: str, now: datetime) -> bool:
        return data_center not in self.avoided_at(now)

    def pause_left_s(self, now: datetime) -> float:
        """0 once it is over, or if there is none."""
        return max(0.0, (self.paused_until - now).total_seconds()) if self.paused_until is not None else 0.0

    # --- what has happened

    def note_refusal(self, data_center: str, why: str, now: datetime, chance: float) -> Self:
        """It had no machine.

        chance  from 0 to 1, so that several fleets do not come back together
        """
        before = self.avoided.get(data_center)
        refusals = before.refusals + 1 if before is not None else 1
        minutes = BACKOFF_MIN[min(refusals, len(BACKOFF_MIN)) - 1] * (0.75 + 0.5 * chance)
        until = now + timedelta(minutes=minutes)
        return self._avoid(data_center, Avoided(until=until, refusals=refusals, why=why))

    def note_created(self, data_center: str) -> Self:
        return self.with_(avoided={place: one for place, one in self.avoided.items() if place != data_center})

    def note_unfit(self, data_center: str, why: str, now: datetime) -> Self:
        return self._avoid(data_center, Avoided(until=now + timedelta(seconds=AVOIDED_S), why=why))

    def note_failure(self, failure: Failure) -> Self:
        """Too many begin a pause, and so does one more while a single pod is tried."""
        recent = [*_recent(self.failures, failure.at), failure]
        if len(recent) < FAILURES and not self.is_probing:
            return self.with_(failures=tuple(recent))
        until = failure.at + timedelta(seconds=PAUSE_S)
        return self.with_(failures=tuple(recent), paused_until=until, is_probing=True)

    def note_boot(self, name: str, boot_s: float) -> Self:
        """All is well again."""
        return self.with_(
            booted=(*self.booted, name),
            boots_s=(*self.boots_s, boot_s)[-BOOTS_KEPT:],
            failures=(),
            paused_until=None,
            is_probing=False,
        )

    def _avoid(self, data_center: str, avoided: Avoided) -> Self:
        return self.with_(avoided={**self.avoided, data_center: avoided})


def _recent(failures: Iterable[Failure], now: datetime) -> list[Failure]:
    return [failure for failure in failures if (now - failure.at).total_seconds() < WITHIN_S]
