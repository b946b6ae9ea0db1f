"""The controller's state, and who may change it: one lock, one table of moves, the first failure wins.

Callers claim and release jobs here; the fleet's thread reports here what ranks say and how they fail.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from worker.mgpu.diagnosis import COLLECTIVES_LIMIT_S, STACKS_LIMIT_S
from worker.mgpu.errors import (
    ControllerAlreadyStartedError,
    ControllerBusyError,
    ControllerDeadError,
    ControllerForkedError,
    ControllerNotStartedError,
    ControllerShutdownError,
    ControllerStateError,
    FatalFleetError,
    FleetDesyncError,
    JobTimeoutError,
    RankFailure,
    StartError,
    StartTimeoutError,
    WrongOwnerError,
)
from worker.mgpu.fleet import END_LIMIT_S, Fleet
from worker.mgpu.inputs import EncodedJob
from worker.mgpu.job import Job, ProtocolError
from worker.mgpu.link import TERMINALS, Kind, Message
from worker.mgpu.state import MOVES, Phase, State
from worker.mgpu.status import ControllerStatus, RankStatus
from worker.mgpu.verdict import Verdict

log = logging.getLogger(__name__)

# From the first failure to the kill. Peers of a dead rank fail too, and may be heard first; ranks that fail in
# setup for one reason do so within moments, and all of them belong into the error.
JOB_SETTLE_S = 0.05
START_SETTLE_S = 0.3


class Supervisor:
    def __init__(self, asymmetry_grace_s: float) -> None:
        self.state = State.NEW
        self.job: Job | None = None
        self.fleet: Fleet | None = None
        self.fatal_error: FatalFleetError | ControllerShutdownError | None = None
        self._lock = threading.RLock()  # a signal handler may shut down while its thread is in here
        self._asymmetry_grace_s = asymmetry_grace_s
        self._last_job_id = 0
        self._failures: list[RankFailure] = []
        self._verdict: Verdict | None = None
        self._started: Future[None] = Future()
        self._pid = os.getpid()
        self._reader_has_left = False  # when shutdown() was called: a job that waits to be read cannot end

    # --- for callers ---

    def require_own_process(self) -> None:
        """In a fork there is no fleet thread, and the lock may be held by a thread that was not copied."""
        if os.getpid() != self._pid:
            raise ControllerForkedError(
                f"this controller belongs to process {self._pid}, and {os.getpid()} is a fork of that: "
                "construct a controller after the fork"
            )

    def launch(self, make_fleet: Callable[[], Fleet], timeout_s: float) -> Future[None]:
        """Begin to start. The future ends when every rank is ready, or nothing is left of the fleet."""
        with self._lock:
            self._require_startable()
            fleet = self.fleet = make_fleet()
            self._move(State.STARTING)
            self._failures, self._verdict = [], None
            started = self._started = Future()
            fleet.after("start", timeout_s, lambda: self._start_timed_out(timeout_s))
            fleet.start()
        return started

    def dispatch(self, encoded: EncodedJob, timeout_s: float | None) -> Job:
        with self._lock:
            self.require_idle()
            fleet = self._required_fleet()
            self._move(State.RUNNING)
            self._last_job_id += 1
            job = self.job = Job(self._last_job_id, len(fleet.ranks), encoded)
            if timeout_s is not None:
                fleet.after("job", timeout_s, lambda: self._job_timed_out(job, timeout_s))
        # Outside the lock: only the fleet's thread writes to ranks, and a slow rank must not block shutdown().
        fleet.send_each(_job_messages(job, encoded))
        return job

    def require_idle(self) -> None:
        with self._lock:
            error = self._refusal()
        if error is not None:
            raise error

    def release(self, job: Job) -> None:
        """The owner has read the job's end."""
        with self._lock:
            if self.job is job:
                self.job = None
                if job.has_ended and job.inputs is not None:
                    job.inputs.recycle()
                job.inputs = None  # a stream may be held for long
                if self.state is State.RUNNING:
                    self._move(State.IDLE)

    def reclaim(self, job_id: int) -> Job:
        """Make this thread the owner of the job in flight, if nobody else can read it any more."""
        with self._lock:
            job = self.job
            if job is None or job.id != job_id:
                raise ValueError(f"job {job_id} is not in flight; it is {job.id if job else 'none'}")
            if not job.is_abandoned:
                raise WrongOwnerError(f"job {job_id} belongs to thread {job.owner.name!r}, which is alive")
            job.owner, job.claim, job.is_dropped = threading.current_thread(), object(), False
        return job

    def note_dropped(self, job: Job, claim: object) -> None:
        """A stream is gone. Called by the garbage collector, so at any time, in a fork too: takes no lock."""
        is_its_stream = self.job is job and job.claim is claim and self._pid == os.getpid()
        if is_its_stream and self.state is State.RUNNING:
            job.is_dropped = True
            text = "job %d: its stream was dropped before its end and keeps the controller busy; reclaim(%d) drains it"
            log.warning(text, job.id, job.id)

    def note_read(self, job: Job) -> None:
        """The owner asks for its next element: a rank may have waited for that."""
        said = job.note_read()
        fleet = self.fleet
        if said is not None and fleet is not None:
            fleet.send(said.rank, Message(Kind.READ, job.id, said.message.sequence))

    def request_stop(self, job: Job, reason: str) -> None:
        with self._lock:
            is_running = self.job is job and not job.has_ended and self.state is State.RUNNING
            fleet = self.fleet
        if is_running and fleet is not None:
            fleet.send(0, Message(Kind.STOP, job.id, body=reason.encode()))

    def condemn(self, job: Job, reason: str) -> None:
        """The job's ranks no longer do their work, as somebody outside can tell."""
        with self._lock:
            fleet = self.fleet
        if fleet is not None:
            fleet.post(lambda: self._condemned(job, reason))

    def status(self) -> ControllerStatus:
        with self._lock:
            state, job, processes = self.state, self.job, self.fleet.ranks if self.fleet else []
        now = time.monotonic()
        yields = job.yields if job else {}
        ranks = [RankStatus(p.rank, p.pid, p.phase, now - p.heard_at, yields.get(p.rank, 0)) for p in list(processes)]
        return ControllerStatus(state, job.id if job else None, tuple(ranks))

    def shut_down(self, graceful_timeout_s: float) -> None:
        """Returns when the fleet is gone. A second call may shorten the first one's grace.

        In a signal handler that interrupted a call in here it returns at once: the fleet ends when that call does.
        """
        is_nested = self._lock._is_owned()  # type: ignore[attr-defined]
        with self._lock:
            fleet = self.fleet
            if self.state in (State.STARTING, State.IDLE, State.RUNNING):
                is_starting = self.state is State.STARTING
                self._move(State.STOPPING)
                self._reader_has_left = self.job is not None and self.job.has_no_reader
                is_stuck = self._reader_has_left and self.job is not None and self.job.waits_for_owner
                graceful_timeout_s = 0.0 if is_starting or is_stuck else graceful_timeout_s
            if fleet is not None and self.state is State.STOPPING:
                fleet.ask_to_leave(graceful_timeout_s)
        if fleet is not None and not is_nested and not fleet.join(graceful_timeout_s + END_LIMIT_S):
            log.error("the fleet's thread has not ended; it may wait for a log handler that this thread holds")
        with self._lock:
            if self.state is State.POISONED and self.fleet is None:
                self._move(State.STOPPED)

    # --- for the fleet's thread ---

    def fleet_ready(self) -> None:
        with self._lock:
            if self.state is not State.STARTING or self._verdict is not None:
                return
            self._required_fleet().cancel("start")
            self._move(State.IDLE)
            self._started.set_result(None)

    def rank_said(self, rank: int, message: Message) -> None:
        with self._lock:
            if self._verdict is not None:
                return
            try:
                job = self._job_of(rank, message)
                if message.kind is Kind.WAITS:
                    self._note_wait(job, rank, message)
                else:
                    job.take(rank, message)
            except ProtocolError as error:
                self._condemn(Verdict(FleetDesyncError, str(error)))
                return
            if message.kind in TERMINALS:
                self._note_end(job, message.kind)

    def _note_wait(self, job: Job, rank: int, message: Message) -> None:
        if job.note_wait(rank, message):
            self._required_fleet().send(rank, Message(Kind.READ, job.id, message.sequence))
        elif self.state is State.STOPPING and self._reader_has_left:
            self._required_fleet().ask_to_leave(0.0)

    def _job_of(self, rank: int, message: Message) -> Job:
        if self.job is None:
            raise ProtocolError(f"rank {rank} spoke of job {message.job_id}, but none is in flight")
        return self.job

    def rank_failed(self, failure: RankFailure) -> None:
        with self._lock:
            self._failures.append(failure)
            if self._verdict is not None:
                return  # being ended already
            verdict = Verdict(StartError if self.state is State.STARTING else None)
            settle_s = START_SETTLE_S if self.state is State.STARTING else JOB_SETTLE_S
            if self.state in (State.IDLE, State.RUNNING):
                self._move(State.POISONED)
            fleet = self._required_fleet()
            if self.state is State.STOPPING or len(self._failures) == len(fleet.ranks):
                self._condemn(verdict)
            elif len(self._failures) == 1:
                fleet.after("settle", settle_s, lambda: self._settled(verdict))

    def fleet_broke(self, error: BaseException) -> None:
        with self._lock:
            if self.state is State.STARTING:
                self._condemn(Verdict(StartError, f"the ranks could not be spawned: {error!r}", error))
            else:
                log.error("the fleet's thread failed", exc_info=error)
                self._condemn(Verdict(FatalFleetError, f"the controller's fleet thread failed: {error!r}", error))

    def fleet_gone(self, surviving_pids: Sequence[int]) -> None:
        with self._lock:
            if self.state is State.STOPPING:
                for failure in self._failures:
                    log.warning("while the fleet was shut down: %s", failure.describe())
            if surviving_pids:
                log.error("processes %s survived SIGKILL; look for them", list(surviving_pids))
            ended_badly = self._verdict is not None
            if self.state is State.POISONED:
                self._tell_end()
            else:
                error = self._end_error()
                self._move(State.STOPPED)
                if not self._started.done():
                    self._started.set_exception(error)
                self._fail_job(error)
            fleet, self.fleet = self._required_fleet(), None
            fleet.logs.close(is_evidence=ended_badly)
            self.job = None

    def _condemned(self, job: Job, reason: str) -> None:
        with self._lock:
            if self.job is job and not job.has_ended and self.state is State.RUNNING and not self._failures:
                self._condemn(Verdict(FleetDesyncError, reason))

    def _settled(self, verdict: Verdict) -> None:
        with self._lock:
            self._condemn(verdict)

    # --- with the lock held ---

    def _move(self, to: State) -> None:
        if to not in MOVES[self.state]:
            raise AssertionError(f"no move from {self.state} to {to}")
        log.debug("controller %s -> %s", self.state, to)
        self.state = to

    def _required_fleet(self) -> Fleet:
        assert self.fleet is not None
        return self.fleet

    def _require_startable(self) -> None:
        if self.fatal_error is not None or self.state is State.POISONED:
            raise self._dead_error()
        if self.state not in (State.NEW, State.STOPPED):
            raise ControllerAlreadyStartedError(f"the controller is {self.state}: it can be started once")

    def _refusal(self) -> ControllerStateError | None:
        """Why a job cannot be claimed now."""
        if self.state is State.IDLE:
            return None
        if self.state is State.RUNNING:
            job_id = self.job.id if self.job else None
            return ControllerBusyError(f"job {job_id} is in flight: iterate its stream to the end, or drain it", job_id)
        if self.fatal_error is not None or self.state is State.POISONED:
            return self._dead_error()
        if self.state in (State.NEW, State.STARTING):
            return ControllerNotStartedError(f"the controller is {self.state}: start() has not returned yet")
        return ControllerShutdownError(f"the controller was shut down (it is {self.state})")

    def _dead_error(self) -> ControllerDeadError:
        if self.fatal_error is None:  # somebody asks before all is known: what is known now counts
            self._condemn(Verdict(None))
            self._tell_end()
        error = ControllerDeadError("the fleet is dead: construct a new controller; the cause is chained")
        error.__cause__ = self.fatal_error
        return error

    def _condemn(self, verdict: Verdict) -> None:
        """Nothing more is to be learnt from waiting: end the fleet. The first verdict stays."""
        if self._verdict is not None:
            return
        self._verdict = verdict
        if self.state in (State.IDLE, State.RUNNING):
            self._move(State.POISONED)
        fleet = self._required_fleet()
        fleet.cancel("start", "job", "asymmetry", "settle")
        if verdict.needs_stacks:
            fleet.ask_what_ranks_do()
            fleet.after("stacks", STACKS_LIMIT_S, self._carry_out)
        else:
            self._carry_out()

    def _carry_out(self) -> None:
        """The caller hears of it first: the kernel's clean-up of a GPU process takes its time."""
        with self._lock:
            fleet, verdict = self._required_fleet(), self._verdict
            is_riddle = verdict is not None and verdict.needs_stacks
            if self.state is State.POISONED:
                self._tell_end()
                if is_riddle and not fleet.has_told_all:
                    fleet.after("kill", COLLECTIVES_LIMIT_S, fleet.kill)
                    return
            fleet.kill()

    def _tell_end(self) -> None:
        """To the job's owner, and to all who come later. Once."""
        if self.fatal_error is None:
            self.fatal_error = self._end_error()
            self._fail_job(self.fatal_error)

    def _fail_job(self, error: BaseException) -> None:
        if self.job is not None and not self.job.has_ended:
            self.job.fail(error)

    def _note_end(self, job: Job, kind: Kind) -> None:
        fleet = self._required_fleet()
        if job.has_ended:
            fleet.cancel("job", "asymmetry")
        elif kind is Kind.REFUSED and self._asymmetry_grace_s > 0:
            fleet.after("asymmetry", self._asymmetry_grace_s, lambda: self._diverged(job))

    def _start_timed_out(self, timeout_s: float) -> None:
        with self._lock:
            if self.state is State.STARTING and not self._failures:
                ranks = self._required_fleet().ranks
                missing = [f"rank {r.rank} (pid {r.pid}, phase {r.phase})" for r in ranks if r.phase is not Phase.READY]
                ready = len(ranks) - len(missing)
                text = f"{ready} of {len(ranks)} ranks were ready after {timeout_s:g} s; missing: {', '.join(missing)}"
                self._condemn(Verdict(StartTimeoutError, text))

    def _job_timed_out(self, job: Job, timeout_s: float) -> None:
        with self._lock:
            if self.job is job and not job.has_ended and not self._failures:
                text = f"job {job.id} exceeded its timeout of {timeout_s:g} s; not ended: {self._name(job.unended)}"
                self._condemn(Verdict(JobTimeoutError, text))

    def _diverged(self, job: Job) -> None:
        with self._lock:
            if self.job is job and not job.has_ended and not self._failures:
                refused = [rank for rank, end in job.ends.items() if end.kind is Kind.REFUSED]
                text = (
                    f"job {job.id}: {self._name(refused)} refused, but {self._name(job.unended)} had not ended "
                    f"{self._asymmetry_grace_s:g} s later and may wait in a collective"
                )
                self._condemn(Verdict(FleetDesyncError, text))

    def _name(self, ranks: Sequence[int]) -> str:
        processes = self._required_fleet().ranks
        return ", ".join(f"rank {rank} (pid {processes[rank].pid})" for rank in ranks)

    def _end_error(self) -> ControllerShutdownError | FatalFleetError:
        """What the end of the fleet means to whoever waits."""
        if (self._verdict is None and not self._failures) or self.state is State.STOPPING:
            notes = "".join(f"; {failure.describe()}" for failure in self._failures)
            return ControllerShutdownError(f"the controller was shut down{notes}")
        verdict = self._verdict or Verdict(None)
        error = verdict.to_error(self._failures, self._required_fleet().logs.evidence())
        for note in self.job.refusals() if self.job else ():
            error.add_note(note)
        return error


def _job_messages(job: Job, encoded: EncodedJob) -> list[Message]:
    """The same bytes for every rank; the tensors' memory for rank 0, which broadcasts it."""
    segments = [encoded.segment, *[None] * (job.world_size - 1)]
    return [Message(Kind.JOB, job.id, body=encoded.body, segment=segment) for segment in segments]
