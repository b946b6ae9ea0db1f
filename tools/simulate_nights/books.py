"""Ledger, notebook and lease of one fleet: they outlive the reconciler, as Redis does."""

from datetime import datetime
from random import Random

from infra.clock import Clock
from infra.errors import LeaseLost
from infra.ledger import FleetLedger, Row
from infra.reconciler.lease import ReconcilerLease
from infra.reconciler.notes import Notes
from tools.simulate_nights.crashes import Saboteur
from tools.simulate_nights.nights import FAULTS_END_S, Night
from tools.simulate_nights.timeline import BEGIN, Timeline


class PlayedLedger(FleetLedger):
    """In memory. Whoever appends may die before or after."""

    def __init__(self, clock: Clock, saboteur: Saboteur) -> None:
        super().__init__(clock)
        self.rows: dict[str, Row] = {}  # by token, oldest first
        self._saboteur = saboteur

    def read(self) -> list[Row]:
        return list(self.rows.values())

    def append(self, row: Row) -> None:
        self._saboteur.strike(f"before the row that is {row.state}")
        self.rows[row.token] = row
        self._saboteur.strike(f"after the row that is {row.state}")

    def born_at(self) -> datetime:
        return BEGIN


class PlayedNotebook:
    """Likewise."""

    def __init__(self, saboteur: Saboteur) -> None:
        self._notes = Notes()
        self._saboteur = saboteur

    def read(self) -> Notes:
        return self._notes

    def write(self, notes: Notes) -> None:
        share = self._saboteur.rates.crash_at_notes
        self._saboteur.strike("before the notes", share)
        self._notes = notes
        self._saboteur.strike("after the notes", share)


class PlayedLease(ReconcilerLease):
    """Nobody else wants it, but Redis does not always answer."""

    def __init__(self, night: Night, timeline: Timeline) -> None:
        self._random: Random = night.random("lease")
        self._share, self._timeline = night.rates.lease_fails, timeline

    def renew(self) -> None:
        if self._random.random() < self._share and self._timeline.now_s < FAULTS_END_S:
            raise LeaseLost("Redis does not say who acts for the fleet")

    def require(self) -> None:
        """It is ours again."""
