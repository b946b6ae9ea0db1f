"""The rank processes of one machine: start, watch, stop. Knows no job.

One thread spawns the ranks, because the kernel ties their parent-death signal to the thread that made them, and then
waits in one selector for their messages, their output, their deaths, a wake-up from other threads, and the nearest
timer. What it learns it tells its handler, in this thread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import selectors
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, Pipe
from typing import Protocol

from torch._C._distributed_c10d import TCPStore  # torch.distributed has it, but its types do not say so

from worker.mgpu.diagnosis import COLLECTIVES_LIMIT_S, STACKS_ALONE_S
from worker.mgpu.errors import RankFailure
from worker.mgpu.link import TERMINALS, Kind, Message
from worker.mgpu.logs import FleetLogs
from worker.mgpu.peers import connect
from worker.mgpu.placement import DeviceClaim
from worker.mgpu.rank_process import RankProcess
from worker.mgpu.reports import read_report
from worker.mgpu.state import Phase
from worker.mgpu.tensors import Travelling
from worker.mgpu.timers import Timers
from worker.mgpu.world import FleetPlan, RankPlan, open_store

log = logging.getLogger(__name__)

TERM_GRACE_S = 1.0  # from SIGTERM to SIGKILL
REAP_LIMIT_S = 3.0  # from SIGKILL until a process counts as unkillable

# From the order to kill until nothing is left, at the most; with what diagnosis may take before it.
END_LIMIT_S = TERM_GRACE_S + 2 * REAP_LIMIT_S + COLLECTIVES_LIMIT_S + 1.0

Action = Callable[[], None]


class FleetHandler(Protocol):
    """Called in the fleet's thread; must not block."""

    def fleet_ready(self) -> None: ...
    def fleet_broke(self, error: BaseException) -> None:
        """The fleet's own thread failed; the ranks are being killed."""

    def rank_said(self, rank: int, message: Message) -> None: ...
    def rank_failed(self, failure: RankFailure) -> None: ...
    def fleet_gone(self, surviving_pids: Sequence[int]) -> None:
        """The last call: nothing is left, but for processes that even SIGKILL did not end."""


class Fleet:
    def __init__(
        self, plan: FleetPlan, claim: DeviceClaim, setup: Travelling, logs: FleetLogs, handler: FleetHandler
    ) -> None:
        self.ranks: list[RankProcess] = []
        self.logs = logs
        self._plan = plan
        self._claim = claim
        self._setup: Travelling | None = setup
        self._handler = handler
        self._timers = Timers()
        self._actions: deque[Action] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Closed with us and not with the fleet: a late post() must not write to a descriptor of somebody else.
        weakref.finalize(self, os.close, self._wake_descriptor).atexit = False  # we may be needed later than that
        self._is_leaving = False
        self._is_ending = False
        self._gave_up = False
        self._store: TCPStore | None = None
        self._alive_writer: Connection | None = None  # open as long as the ranks may live
        self._thread = threading.Thread(target=self._run, name="mgpu-fleet", daemon=True)

    # --- for any thread ---

    def start(self) -> None:
        self._thread.start()

    def post(self, action: Action) -> None:
        """Run `action` in the fleet's thread. Safe in a signal handler. Ignored once the fleet is gone."""
        self._actions.append(action)
        os.eventfd_write(self._wake_descriptor, 1)

    def after(self, name: str, seconds: float, action: Action) -> None:
        """Run `action` once, `seconds` from now, in place of an earlier timer of that name."""
        due_at = time.monotonic() + seconds
        self.post(lambda: self._timers.set(name, due_at, action))

    def cancel(self, *names: str) -> None:
        self.post(lambda: self._timers.cancel(*names))

    def send(self, rank: int, message: Message) -> None:
        self.post(lambda: self._send(rank, message))

    def send_each(self, messages: Sequence[Message]) -> None:
        """One message per rank, in rank order."""
        self.post(lambda: self._send_each(messages))

    def ask_to_leave(self, within_s: float) -> None:
        """Ranks end after their job, if any; those that do not in time are killed."""
        self.post(lambda: self._ask_to_leave(within_s))

    def kill(self) -> None:
        """At once."""
        self.post(self._kill)

    def join(self, timeout_s: float) -> bool:
        """Wait until `fleet_gone` has returned; whether it has."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(min(timeout_s, threading.TIMEOUT_MAX))
        return not self._thread.is_alive()

    # --- for the handler, in the fleet's thread ---

    def ask_what_ranks_do(self) -> None:
        for process in self.ranks:
            process.ask_for_stacks()
        self.after("collectives", STACKS_ALONE_S, self._ask_for_collectives)

    def _ask_for_collectives(self) -> None:
        for process in self.ranks:
            process.ask_for_collectives()

    @property
    def has_told_all(self) -> bool:
        return all(process.has_told_its_collectives for process in self.ranks)

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._spawn()
            while not self._is_over():
                self._wait_for_events()
        except BaseException as error:  # top of the thread: nobody else would hear of it
            try:
                self._handler.fleet_broke(error)
            finally:
                self._kill()
                self._reap_blindly()
        survivors = [process.pid for process in self.ranks if process.phase is not Phase.GONE]
        try:
            self._close()
        finally:
            self._handler.fleet_gone(survivors)  # whatever else goes wrong: callers wait for it

    def _is_over(self) -> bool:
        is_wanted = self._is_ending or self._is_leaving
        return self._gave_up or (is_wanted and all(process.phase is Phase.GONE for process in self.ranks))

    def _wait_for_events(self) -> None:
        for key, _ in self._selector.select(self._timers.seconds_to_next()):
            key.data()
        self._timers.run_due()

    def _spawn(self) -> None:
        resource_tracker.ensure_running()  # by itself it would come with the first rank, and unblock the signal
        # Ranks inherit this, so that a Ctrl-C while they still import reaches the controller alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._selector.register(self._wake_descriptor, selectors.EVENT_READ, self._run_actions)
        self._store = open_store()
        reader, self._alive_writer = Pipe(duplex=False)
        connections = connect(self._plan.world_size)
        try:
            for rank, peers in enumerate(connections):
                plan = RankPlan(self._plan, rank, self._store.port, self.logs.folder)
                process = RankProcess(plan, self._required_setup(), reader, peers, self.logs.open(rank))
                self.ranks.append(process)
                self._watch(process)
        finally:
            # Our copies of the ranks' ends: while they are open, no rank sees the end of another.
            reader.close()
            for end in itertools.chain(*connections):
                end.close()
        self._setup = None  # big tensors, perhaps

    def _required_setup(self) -> Travelling:
        assert self._setup is not None
        return self._setup

    def _watch(self, process: RankProcess) -> None:
        read = selectors.EVENT_READ
        self._selector.register(process.link.connection, read, lambda: self._on_socket(process))
        self._selector.register(process.output, read, lambda: self._on_output(process))
        self._selector.register(process.death, read, lambda: self._on_death(process))

    def _run_actions(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_descriptor)
        while self._actions:
            self._actions.popleft()()

    def _on_socket(self, process: RankProcess) -> None:
        self._flush(process)
        self._read(process)

    def _on_output(self, process: RankProcess) -> None:
        if not process.read_log():
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.output)

    def _on_death(self, process: RankProcess) -> None:
        self._selector.unregister(process.death)
        while self._read(process):
            pass
        self._hear_others(process)
        process.read_log()
        phase = process.phase
        process.reap()
        if not (self._is_ending or process.has_failed or phase is Phase.LEFT):
            self._report(process, process.failure_from_death(phase))

    def _read(self, process: RankProcess) -> bool:
        """Whether there was a message."""
        try:
            messages = process.link.receive_pending()
        except (EOFError, ConnectionError):  # its death is about to be seen, and says more
            self._stop_watching_socket(process)
            return False
        for message in messages:
            process.heard_at = time.monotonic()
            self._take(process, message)
        return bool(messages)

    def _take(self, process: RankProcess, message: Message) -> None:
        if message.kind is Kind.PHASE:
            process.phase = Phase(message.body.decode())
            if all(other.phase is Phase.READY for other in self.ranks):
                self._handler.fleet_ready()
        elif message.kind is Kind.FAILED:
            self._hear_others(process)
            self._report(process, process.failure_from_report(read_report(message.body)))
        else:
            if message.kind in TERMINALS:
                process.phase = Phase.READY
            self._handler.rank_said(process.rank, message)

    def _hear_others(self, process: RankProcess) -> None:
        """What was said before a failure is heard before it."""
        for other in self.ranks:
            if other is not process:
                self._read(other)

    def _report(self, process: RankProcess, failure: RankFailure) -> None:
        process.has_failed = True
        self._handler.rank_failed(failure)

    def _send_each(self, messages: Sequence[Message]) -> None:
        for rank, message in enumerate(messages):
            self._send(rank, message)

    def _send(self, rank: int, message: Message) -> None:
        process = self.ranks[rank]
        if message.kind is Kind.JOB:
            process.phase = Phase.RUNNING
        process.link.enqueue(message)
        self._flush(process)

    def _flush(self, process: RankProcess) -> None:
        try:
            is_drained = process.link.flush_pending()
        except ConnectionError:  # dead or dying
            return
        events = selectors.EVENT_READ if is_drained else selectors.EVENT_READ | selectors.EVENT_WRITE
        with contextlib.suppress(KeyError):  # no longer watched
            key = self._selector.get_key(process.link.connection)
            if key.events != events:
                self._selector.modify(process.link.connection, events, key.data)

    def _stop_watching_socket(self, process: RankProcess) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(process.link.connection)

    def _ask_to_leave(self, within_s: float) -> None:
        self._timers.set_sooner("leave", time.monotonic() + within_s, self._terminate)
        for process in self.ranks:
            self._send(process.rank, Message(Kind.EXIT))
        self._is_leaving = True

    def _terminate(self) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        for process in self.ranks:
            process.signal(signal.SIGTERM)
        self._timers.set("kill", time.monotonic() + TERM_GRACE_S, self._kill)

    def _kill(self) -> None:
        self._is_ending = True
        for process in self.ranks:
            process.signal(signal.SIGKILL)
        self._timers.set("give up", time.monotonic() + REAP_LIMIT_S, self._give_up)

    def _reap_blindly(self) -> None:
        """Without the selector, which may be what failed."""
        for process in self.ranks:
            process.reap(REAP_LIMIT_S)

    def _give_up(self) -> None:
        self._gave_up = True

    def _close(self) -> None:
        self._selector.close()
        self._actions.clear()
        self._timers.clear()
        for process in self.ranks:
            process.close()
        if self._alive_writer is not None:
            self._alive_writer.close()
        self._store = None
        self._claim.release()
