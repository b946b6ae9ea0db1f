"""Looks, plans and acts. From what could not be read at a look, no act follows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from infra.answers import Pod, PodBill
from infra.clock import Clock
from infra.errors import ApiError, InfraError, LeaseLost
from infra.guards import Move, find_moves
from infra.ledger import FleetLedger, Row, RowState
from infra.pod_names import fleet_of
from infra.reconciler.decisions import Alert, Decision, Drain, End, GiveBack, Hold, Order, Plan, Settle, Undrain
from infra.reconciler.limits import Limits
from infra.reconciler.machine import Machine, join_machines
from infra.reconciler.memory import Memory
from infra.reconciler.notes import Notebook, Notes
from infra.reconciler.orderer import Orderer, Stock
from infra.reconciler.orphans import find_strays
from infra.reconciler.planner import plan
from infra.reconciler.queue import Queue
from infra.reconciler.situation import Situation
from infra.reconciler.spend import accrue
from infra.runpod import PodCalls
from infra.terminate import ask_end, is_gone, record_gone

NUMBER = re.compile(r"\d+")  # in what is told: money and minutes that run are no news

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Reconciler:
    """Of one fleet of pods, by whoever holds its lease."""

    prefix: str
    fleet: str
    limits: Limits
    api: PodCalls
    ledger: FleetLedger
    notebook: Notebook
    queue: Queue
    clock: Clock
    orderer: Orderer | None  # None: no pod is ordered any more
    hold_lease: Callable[[], None]  # renews it, and raises LeaseLost: called before whatever spends or destroys
    is_down_asked: Callable[[], bool]  # whether a person wants no pod any more
    read_bills: Callable[[], Sequence[PodBill]]
    keep_log: Callable[[str, str], None]  # of the pod with this id and name, which is about to end
    tell: Callable[[str], None]
    _told: frozenset[str] = frozenset()  # alerts and holds of the last look, but for their numbers

    def tick(self) -> Plan:
        """Look, decide and do it. Raises LeaseLost, and what `look` raises."""
        self.hold_lease()
        self.queue.note_contact()
        situation, notes = self.look()
        decided = plan(situation)
        self._say(decided)
        notes = notes.with_memory(decided.memory)
        self.notebook.write(notes)  # before anything is spent that it would have to tell of
        for decision in decided.decisions:
            notes = notes.with_memory(self._carry_out(decision, situation, notes.memory))
        if notes.memory != decided.memory:
            self.notebook.write(notes)
        return decided

    # --- looking

    def look(self) -> tuple[Situation, Notes]:
        """Raises ApiError, LedgerUnusable, LedgerLost and RedisError: then nothing is known well enough to act."""
        told = self.queue.look()
        pods, now = self._list_own(), self.clock.now()
        rows = self.ledger.read()
        notes = self.notebook.read()
        found = find_moves(rows, pods, now, in_flight_s=0.0, was_listed=notes.spend.was_listed)
        moves = [move for move in found if self._is_sure(move)]
        moved = [_apply(row, moves, now) for row in rows]
        notes = notes.with_spend(accrue(notes.spend, pods, moved, now).raise_to(self.read_bills()))
        stock = self.orderer.read_stock() if self.orderer is not None else Stock()
        situation = Situation(
            now=now,
            limits=self.limits,
            machines=join_machines(moved, pods, told.workers, told.reports, now, told.at_s),
            work=told.work,
            spent_usd=notes.spend.campaign_usd,
            memory=notes.memory,
            moves=moves,
            strays=find_strays(pods, moved),
            born_at=self.ledger.born_at(),
            places=stock.places,
            usd_per_hour=stock.usd_per_hour,
            is_going_down=self.is_down_asked(),
        )
        return situation, notes

    def _list_own(self) -> list[Pod]:
        """Of this fleet: others are their own reconcilers', or people's."""
        return [pod for pod in self.api.list_pods() if fleet_of(pod.name, self.prefix) == self.fleet]

    def _is_sure(self, move: Move) -> bool:
        """Nobody would look again for a pod that one list has left out: that it is gone, is asked of itself."""
        if move.state is not RowState.GONE or move.pod_id is None:
            return True
        try:
            return is_gone(self.api, move.pod_id)
        except ApiError as exc:
            log.warning("a pod that is not listed could not be read", pod_id=move.pod_id, why=str(exc))
            return False

    def _say(self, decided: Plan) -> None:
        """Every act; what only stands in the way, once."""
        standing = [one.describe() for one in decided.decisions if isinstance(one, Alert | Hold)]
        news = frozenset(NUMBER.sub("", text) for text in standing)
        if len(decided.decisions) > len(standing) or news - self._told:
            for line in decided.to_lines():
                self.tell(line)
        self._told = news

    # --- acting

    def _carry_out(self, decision: Decision, situation: Situation, memory: Memory) -> Memory:
        """One that fails leaves the others to be done: the next look sees what came of it."""
        try:
            self.hold_lease()
            if isinstance(decision, Order):
                return self._place(decision, situation, memory)
            self._change(decision)
        except LeaseLost:
            raise
        except InfraError as exc:
            self.tell(f"failed   {exc}")
        return memory

    def _change(self, decision: Decision) -> None:
        match decision:
            case Settle(move):
                self._settle(move)
            case Drain(machine, why):
                self._drain(machine, why)
            case Undrain(machine):
                self.queue.resume(machine.name)  # first: if this is cut off, the next look drains it again
                self.ledger.move(machine.row, RowState.CREATED)
            case GiveBack(machine):
                self.queue.drain(machine.name)
            case End():
                self._end(decision)

    def _place(self, order: Order, situation: Situation, memory: Memory) -> Memory:
        assert self.orderer is not None, "without an orderer there is no stock, so nothing is ordered"
        if memory.stopped:  # by the order before this one
            return memory
        return self.orderer.place(order, situation, memory)

    def _settle(self, move: Move) -> None:
        self.ledger.move(move.row, move.state, pod_id=move.pod_id, cause=move.cause)
        if move.state is RowState.GONE:
            self.queue.forget(move.row.name)

    def _drain(self, machine: Machine, why: str) -> None:
        if machine.row.state is not RowState.DRAINING:
            self.ledger.move(machine.row, RowState.DRAINING, cause=why)
        self.queue.pause(machine.name)

    def _end(self, end: End) -> None:
        if end.is_failure:
            self.keep_log(end.pod_id, end.name)
        ask_end(self.api, self.ledger, end.pod_id)
        if is_gone(self.api, end.pod_id):
            record_gone(self.ledger, end.pod_id)
            self.queue.forget(end.name)


def _apply(row: Row, moves: Sequence[Move], now: datetime) -> Row:
    """The row as it will be once the moves are noted."""
    move = next((move for move in moves if move.row.token == row.token), None)
    return row.moved(move.state, now, pod_id=move.pod_id, cause=move.cause) if move is not None else row
