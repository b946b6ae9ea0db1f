"""A pod's life: prepare, serve, leave. One loop takes what happens, one thing after the other, and waits nowhere else.

What it must not do is end while somebody pays: RunPod starts a container that has ended again, and bills on. So a pod
that cannot serve, or is no longer wanted, stays up, tells the queue, and asks for its end again and again.
"""

import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import structlog

from infra.boot.agenda import Agenda
from infra.boot.ending import end_pod
from infra.boot.errors import Stopped, Unfit
from infra.boot.health import Health
from infra.boot.preparation import fetch_checkpoints, look_at_machine, try_machine
from infra.boot.queue_link import Heard, QueueLink
from infra.boot.settings import BootSettings
from infra.boot.start_script import running_script
from infra.boot.watch import Limits, Moment, judge
from infra.boot.worker_process import (
    UNHEALTHY,
    WELL_S,
    Fate,
    WorkerProcess,
    choose_pause_s,
    describe_exit,
    judge_exit,
)
from infra.busy import Work
from infra.pod_report import BootState

MOVES = {
    BootState.CHECKING: {BootState.FETCHING, BootState.UNFIT, BootState.LEAVING},
    BootState.FETCHING: {BootState.SERVING, BootState.UNFIT, BootState.LEAVING},
    BootState.SERVING: {BootState.UNFIT, BootState.LEAVING},
    BootState.UNFIT: set[BootState](),
    BootState.LEAVING: set[BootState](),
}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToldToStop:
    """SIGTERM or SIGINT."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The machine was looked at."""

    gpus: int


@dataclass(frozen=True, slots=True)
class Tried:
    """It will do."""

    worker_environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """All is there that a worker needs."""


@dataclass(frozen=True, slots=True)
class Hindered:
    """It is not, and will not be."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """By whatever."""

    exit_code: int


Event = ToldToStop | Seen | Tried | Prepared | Hindered | WorkerEnded


class Pod:
    """This machine."""

    def __init__(self, settings: BootSettings) -> None:
        self._settings = settings
        self._state = BootState.CHECKING
        self._reason = ""
        self._wants_end = False
        self._is_told = False  # to stop, from outside
        self._exit_code: int | None = None  # once there is one, the loop ends
        self._stay_code = 0  # of a pod that stays until it is told to stop
        self._gpus = 0
        self._worker_environment: dict[str, str] = {}  # added to the pod's own
        self._worker: WorkerProcess | None = None  # that runs
        self._failures = 0  # of workers, one soon after the other
        self._worker_began = 0.0
        self._is_busy = False  # as far as was last heard
        self._began = self._busy_at = time.monotonic()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()  # whose `put` a signal may interrupt with another
        self._agenda = Agenda(time.monotonic)
        self._queue = QueueLink(settings)
        self._health = Health(settings.health_file)
        self._stopped = threading.Event()

    def run(self, problem: str = "") -> int:
        """Until it is told to stop; returns the worker's exit code.

        problem  for which it cannot serve, known before
        """
        with self._heeding_signals(), running_script(self._settings.start_script):
            log.info("pod", name=self._settings.name, pod_id=self._settings.pod_id, place=self._settings.data_center)
            self._agenda.put(self._look, 0)
            if problem:
                self._give_up(problem, UNHEALTHY)
            else:
                threading.Thread(target=self._prepare, daemon=True).start()
            try:
                while self._exit_code is None:
                    self._agenda.do_due()
                    self._take_next()
            finally:
                self._health.end()
                self._kill_worker()  # if an error of ours ends the loop
        return self._exit_code

    def _take_next(self) -> None:
        try:
            event = self._events.get(timeout=self._agenda.pause_s)
        except queue.Empty:
            return
        match event:
            case ToldToStop():
                self._heed_signal()
            case WorkerEnded(exit_code):
                self._mourn(exit_code)
            case _ if self._is_ending:
                return  # of a preparation that nobody waits for any more
            case Seen(gpus):
                self._gpus = gpus
            case Tried(environment):
                self._worker_environment = environment
                self._move(BootState.FETCHING)
            case Prepared():
                self._busy_at = time.monotonic()
                self._move(BootState.SERVING)
                self._start_worker()
            case Hindered(reason):
                self._give_up(reason, UNHEALTHY)

    def _move(self, state: BootState, reason: str = "") -> None:
        assert state in MOVES[self._state], f"a pod that is {self._state} does not become {state}"
        log.info("pod moved", before=str(self._state), now=str(state), reason=reason)
        self._state, self._reason = state, reason
        self._tell()

    def _tell(self) -> None:
        self._show_health()
        self._queue.tell(self._state, self._reason, self._gpus, wants_end=self._wants_end)

    def _show_health(self) -> None:
        if self._is_ending:
            self._health.end()
        else:
            self._health.renew()

    @property
    def _is_ending(self) -> bool:
        return not MOVES[self._state]

    # --- before the worker

    def _prepare(self) -> None:
        """In a thread: it may take long, and the loop has to watch meanwhile."""
        try:
            topology = look_at_machine(self._settings)
            self._events.put(Seen(len(topology.gpus)))
            self._events.put(Tried(try_machine(self._settings, topology, self._stopped.is_set)))
            fetch_checkpoints(self._settings, self._stopped.is_set)
            self._events.put(Prepared())
        except Stopped:
            log.info("the preparation was stopped")
        except Unfit as exc:
            self._events.put(Hindered(str(exc)))
        except Exception as exc:
            log.exception("the preparation failed")
            self._events.put(Hindered(f"an error that nobody foresaw: {type(exc).__name__}; the log has more"))

    # --- the worker

    def _start_worker(self) -> None:
        command = self._settings.worker_arguments
        self._reason, self._worker_began = "", time.monotonic()
        try:
            self._worker = WorkerProcess(
                command, self._worker_environment, lambda code: self._events.put(WorkerEnded(code))
            )
        except OSError as exc:
            self._give_up(f"its worker cannot be started: {command[0]}: {exc.strerror or exc}", UNHEALTHY)

    def _mourn(self, exit_code: int) -> None:
        self._worker, self._is_busy = None, False
        self._agenda.drop(self._kill_worker)
        log.info("the worker has ended", exit_code=exit_code)
        if self._is_told:
            self._exit_code = exit_code
        elif self._state is BootState.LEAVING:
            self._ask_for_end(0)
        elif (fate := judge_exit(exit_code)) is Fate.LEAVE:
            self._leave("its worker was told to leave")
        elif fate is Fate.UNFIT:
            self._give_up(describe_exit(exit_code), exit_code)
        else:
            self._start_again(exit_code)

    def _start_again(self, exit_code: int) -> None:
        lived_s = time.monotonic() - self._worker_began
        self._failures = 1 if lived_s > WELL_S else self._failures + 1
        pause_s = choose_pause_s(self._failures)
        self._reason = f"{describe_exit(exit_code)}; it is started again in {pause_s:.0f} s"
        log.warning("the worker is started again", exit_code=exit_code, pause_s=pause_s)
        self._agenda.put(self._start_worker, pause_s)
        self._tell()

    def _drain_worker(self) -> None:
        """Its end comes as an event."""
        assert self._worker is not None
        self._worker.drain()
        self._agenda.put(self._kill_worker, self._settings.patience_s)

    def _kill_worker(self) -> None:
        if self._worker is not None:
            log.warning("the worker does not end, and is killed")
            self._worker.kill()

    # --- the watch

    def _look(self) -> None:
        self._agenda.put(self._look, self._settings.look_s)
        heard = self._queue.listen()
        self._note_work(heard)
        self._show_health()
        if heard is not None:
            self._tell()
        if not self._is_ending and (reason := judge(self._observe(heard), self._limits)):
            self._leave(reason)

    def _note_work(self, heard: Heard | None) -> None:
        if heard is not None:
            self._is_busy = self._worker is not None and heard.work is Work.BUSY
        if self._is_busy:
            self._busy_at = time.monotonic()

    def _observe(self, heard: Heard | None) -> Moment:
        monotonic = time.monotonic()
        silent_s = monotonic - self._began
        if heard is not None and heard.contact_at is not None:
            silent_s = min(silent_s, heard.now - heard.contact_at)
        return Moment(
            now=heard.now if heard is not None else time.time(),
            knows_queue=heard is not None,
            is_busy=self._is_busy,
            idle_s=monotonic - self._busy_at if self._state is BootState.SERVING else 0.0,
            silent_s=silent_s,
        )

    @property
    def _limits(self) -> Limits:
        lease = self._settings.lease_until
        return Limits(lease.timestamp() if lease else None, self._settings.idle_s, self._settings.contact_s)

    # --- the end

    def _leave(self, reason: str) -> None:
        """By its own decision; it stays until somebody ends it."""
        self._stopped.set()
        self._agenda.drop(self._start_worker)
        self._move(BootState.LEAVING, reason)
        if self._worker is not None:
            self._drain_worker()
        else:
            self._ask_for_end(0)

    def _give_up(self, reason: str, exit_code: int) -> None:
        """It stays, so that its log can be read, and asks for its end after a while."""
        self._stay_code = exit_code
        self._wants_end = True
        log.error("this pod cannot serve", reason=reason)
        self._move(BootState.UNFIT, reason)
        self._ask_for_end(self._settings.end_grace_s)

    def _ask_for_end(self, after_s: float) -> None:
        self._wants_end = True
        self._tell()
        self._agenda.put(self._end_pod, after_s)

    def _end_pod(self) -> None:
        end_pod(self._settings.end_arguments)
        self._agenda.put(self._end_pod, self._settings.end_grace_s)  # if it is still there

    def _heed_signal(self) -> None:
        """The first drains the worker; a second one goes on to it, too, and ends it at once."""
        is_first, self._is_told = not self._is_told, True
        self._stopped.set()
        self._agenda.drop(self._start_worker)
        is_draining = self._state is BootState.LEAVING
        if not self._is_ending:
            self._move(BootState.LEAVING, "told to stop")
        if self._worker is None:
            self._exit_code = self._stay_code
        elif not (is_first and is_draining):
            self._drain_worker()

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        def heed(_number: int, _frame: FrameType | None) -> None:
            self._events.put(ToldToStop())

        before = {number: signal.signal(number, heed) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
