"""Lets the drawn faults happen to a farm, and mends what lasts too long to mend itself."""

import heapq
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from tools.chaos.farm import Farm
from tools.chaos.faults import Fault, Kind
from tools.chaos.supervised import SupervisedWorker

STORE_LIMIT_S = 120.0  # until it serves again


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault, and whom it met."""

    kind: Kind
    at: float  # Unix time
    lasts_s: float
    victim: str  # empty: nobody was there to be met
    worker: str  # as the queue knows it, if it was one


class Server(Protocol):
    def kill(self) -> None: ...
    def start(self) -> None: ...


class Storm:
    """For one thread, which has started the servers: started again in another, they would die with that."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self._mending: list[tuple[float, int, Callable[[], None]]] = []  # a heap: when (time.monotonic()), what
        self._order = itertools.count()
        self._down: set[str] = set()
        self.happened: list[Happened] = []

    def rage(self, faults: Iterable[Fault], until: threading.Event, *, longest_s: float) -> None:
        """Returns with everything started again."""
        strike_at = begun_at = time.monotonic()
        for fault in faults:
            strike_at += fault.gap_s
            if strike_at > begun_at + longest_s or not self._await(strike_at, until):
                break
            self.happened.append(self._strike(fault))
        self._calm()

    def _await(self, moment: float, until: threading.Event) -> bool:
        """Mend what is due meanwhile. False if it is over before the moment comes."""
        while self._mending and self._mending[0][0] < moment:
            if until.wait(_seconds_to(self._mending[0][0])):
                return False
            self._mend_next()
        return not until.wait(_seconds_to(moment))

    def _calm(self) -> None:
        while self._mending:
            self._mend_next()
        self._farm.weed.await_usable(timeout_s=STORE_LIMIT_S)

    def _mend_next(self) -> None:
        _, _, mend = heapq.heappop(self._mending)
        mend()

    def _mend_later(self, seconds: float, mend: Callable[[], None]) -> None:
        heapq.heappush(self._mending, (time.monotonic() + seconds, next(self._order), mend))

    def _strike(self, fault: Fault) -> Happened:
        at, worker = time.time(), None
        match fault.kind:
            case Kind.KILL_REDIS:
                victim = self._take_down("redis", self._farm.redis, fault)
            case Kind.KILL_STORE:
                victim = self._take_down("store", self._farm.weed, fault)
            case _:
                worker = self._choose(fault)
                victim = worker.name if worker else ""
        name = worker.queue_name() if worker else ""
        if worker:
            self._strike_worker(fault, worker)
        return Happened(fault.kind, at, fault.lasts_s, victim, name)

    def _take_down(self, name: str, server: Server, fault: Fault) -> str:
        if name in self._down:
            return ""

        def start() -> None:
            server.start()
            self._down.remove(name)

        server.kill()
        self._down.add(name)
        self._mend_later(fault.lasts_s, start)
        return name

    def _choose(self, fault: Fault) -> SupervisedWorker | None:
        ready = [worker for worker in self._farm.workers if worker.is_ready()]
        return ready[int(fault.victim * len(ready))] if ready else None

    def _strike_worker(self, fault: Fault, worker: SupervisedWorker) -> None:
        match fault.kind:
            case Kind.KILL_WORKER:
                worker.send(signal.SIGKILL)
            case Kind.END_WORKER:
                worker.send(signal.SIGTERM)
            case Kind.STOP_WORKER:
                worker.send(signal.SIGSTOP)
                self._mend_later(fault.lasts_s, lambda: worker.send(signal.SIGCONT))
            case Kind.KILL_RANK:
                for pid in worker.rank_pids():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def _seconds_to(moment: float) -> float:
    return max(0.0, moment - time.monotonic())
