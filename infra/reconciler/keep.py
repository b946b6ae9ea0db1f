"""Reconciles until told to stop: one look after the other, by whoever holds the lease."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import structlog
from redis.exceptions import RedisError

from infra.clock import Clock
from infra.errors import InfraError, LeaseLost
from infra.reconciler.decisions import Plan
from infra.reconciler.lease import ReconcilerLease
from infra.reconciler.reconciler import Reconciler
from jobs.errors import RedisUnavailable

log = structlog.get_logger(__name__)


class StopWish:
    """That a signal made. An Event's lock would be the very one that a signal may find taken."""

    def __init__(self) -> None:
        self.is_made = False
        self._told: SimpleQueue[None] = SimpleQueue()  # whose `put` may interrupt anything

    def make(self) -> None:
        self.is_made = True
        self._told.put(None)

    def wait(self, timeout_s: float) -> None:
        """Until it is made, or the time is over."""
        with suppress(Empty):
            self._told.get(timeout=timeout_s)


@dataclass(slots=True)
class Keeper:
    """Looks every so many seconds. A look that fails is told, and the next one comes all the same."""

    reconciler: Reconciler
    lease: ReconcilerLease
    clock: Clock
    every_s: float
    stop: StopWish
    tell: Callable[[str], None]
    _failure: str = ""

    def run(self, *, is_done: Callable[[Plan], bool]) -> Plan | None:
        """The last plan, once all is done; None if it was stopped. Raises LeaseHeld once another has taken over."""
        while not self.stop.is_made:
            began_s = self.clock.monotonic()
            decided = self._look()
            if decided is not None and is_done(decided):
                return decided
            self.stop.wait(max(0.0, began_s + self.every_s - self.clock.monotonic()))
        return None

    def _look(self) -> Plan | None:
        try:
            decided = self.reconciler.tick()
        except LeaseLost as exc:
            self._tell_failure(exc)
            self._take_again()
        except (InfraError, RedisError, RedisUnavailable) as exc:
            self._tell_failure(exc)
        else:
            self._failure = ""
            return decided
        return None

    def _take_again(self) -> None:
        """Redis may have been away for longer than the lease; another holder is there to stay. Raises LeaseHeld."""
        try:
            self.lease.require()
        except LeaseLost:
            return

    def _tell_failure(self, error: Exception) -> None:
        """Once, while it stays the same."""
        text = f"failed   {error}: nothing is done until the next look"
        if text != self._failure:
            self.tell(text)
        self._failure = text
