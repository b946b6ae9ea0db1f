"""RQ around the fleet: takes one job at a time, reports its end, and leaves a sick fleet.

Subclasses SimpleWorker, so jobs run in this process beside the fleet, and keeps RQ's keys and registries, so that
`rq info` and any RQ client show the truth. RQ's own loop, dequeue, job execution, cleaning and signal handlers are not
used: they lose jobs over several queues, run any importable function, swallow errors, fail jobs that run, and raise
inside signal handlers.
"""

import logging
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import structlog
from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError
from rq import SimpleWorker
from rq.serializers import JSONSerializer
from rq.suspension import is_suspended
from rq.worker import WorkerStatus
from rq.worker_registration import register

from jobs import events
from jobs.errors import LeaseLost, RedisUnavailable
from jobs.lease import WAKE_CHANNEL, Lease, Leases, Orders, printable
from jobs.offers import count_pixels
from jobs.queues import open_queue
from jobs.store import Store
from jobs.workers import JobRecord, WorkerRecord, WorkerState, forget_worker, write_worker
from worker import metrics
from worker.attempt import Attempt
from worker.departure import Departure
from worker.dequeue import Dequeue, Taken
from worker.errors import (
    TOLD_TO_STOP,
    AttemptLost,
    Canceled,
    DeadlinePassed,
    Interrupted,
    OutOfMemory,
    PutBack,
    Superseded,
    WorkerError,
)
from worker.farm import Farm, read_farm
from worker.heartbeat import Heartbeat
from worker.life import Life, hearing_signals
from worker.logs import name_job
from worker.mgpu import MGPUController
from worker.outage import insist, is_outage
from worker.outputs import OutputLimits, Outputs
from worker.settings import WorkerSettings
from worker.stall import StallLimits, StallWatch
from worker.standing import Standing
from worker.view import View
from worker.vitals import Growth, GrowthLimits, read_ranks

ANSWER_TIMEOUT_S = 5  # of Redis: a worker asks for nothing that takes longer
_IDLE_S = 0.5  # between two looks at the queues, if no word comes
_RETRY_S = 1.0
_RECORD_TTL_S = 90  # of RQ's record of this worker, beyond a lease

Answer = TypeVar("Answer")

log = structlog.get_logger()


def render(**_: object) -> NoReturn:
    """What a job names. Stock RQ workers would call it, and have no fleet."""
    raise RuntimeError("this job needs `h3render worker`; `rq worker` cannot run it")


@dataclass(frozen=True, slots=True)
class Running:
    """The attempt that a worker is at."""

    lease: Lease
    attempt: Attempt
    ends_at: float  # time.monotonic(), the job's deadline

    def record(self) -> JobRecord:
        at = self.attempt.progress
        lease = self.lease
        return JobRecord(
            job_id=lease.job_id, attempt=lease.attempt, queue=lease.queue, phase=at.phase, step=at.step, steps=at.steps
        )


class RenderWorker(SimpleWorker):
    """One machine's place in its queues."""

    def __init__(
        self,
        redis: Redis,
        redis_url: str,
        queues: Sequence[str],
        controller: MGPUController,
        store: Store,
        settings: WorkerSettings,
        standing: Standing,
        life: Life,
    ) -> None:
        super().__init__(
            [open_queue(queue, redis) for queue in queues],
            name=standing.id,
            connection=redis,
            serializer=JSONSerializer,
            log_job_description=False,
        )
        self._controller, self._store, self._settings = controller, store, settings
        self._standing, self.life = standing, life
        self._leases = Leases(redis, lease_s=settings.lease_s)
        self._dequeue = Dequeue(self._leases, queues, standing.offer, self.name, longest_wait_s=settings.longest_wait_s)
        self._watch = StallWatch(_stall_limits(settings))
        self._growth = Growth(GrowthLimits(settings.rss_growth_bytes, settings.vram_growth_bytes))
        self._spool = settings.spool_dir or Path(tempfile.gettempdir())
        self._departure = Departure(settings.drain_s)
        self._running: Running | None = None
        self._why_replaced = ""  # the fleet; once it is to be
        self._why_idle = ""  # though there may be jobs
        self._is_paused = False
        self._record_lock = threading.Lock()
        self._farm = Farm()
        self._heartbeat = Heartbeat(
            redis_url, self._leases.beat_s, beat=self._beat, look=self._look, ask=self._follow_orders
        )

    @property
    def connection_timeout(self) -> int:
        """RQ raises our client's limit of an answer to this, 415 s by its default: nothing here waits so long."""
        return ANSWER_TIMEOUT_S

    @property
    def must_restart(self) -> bool:
        """The fleet is to be replaced, and nobody has asked for an end."""
        return bool(self._why_replaced) and not self._departure.is_asked

    @property
    def is_leaving(self) -> bool:
        """Somebody has asked for an end."""
        return self._departure.is_asked

    @property
    def why_replaced(self) -> str:
        """Why there is to be another fleet."""
        return self._why_replaced

    @property
    def _must_leave(self) -> bool:
        return bool(self._why_replaced) or self._departure.is_asked

    def serve(self, *, burst: bool, start: Callable[[], None] = lambda: None) -> None:
        """Render until told to stop, until the fleet is to be replaced, or (burst) until the queues are empty.

        `start` brings the fleet up; meanwhile this worker is seen, and can be told to leave. What it raises goes on.
        """
        self._install_signal_handlers()  # type: ignore[no-untyped-call]  # RQ's
        try:
            with hearing_signals(), self._heartbeat:
                start()
                self._sign_up()
                log.info(
                    "ready for jobs",
                    worker=self.name,
                    queues=self.queue_names(),
                    offer=self._standing.offer.model_dump(),
                )
                while (taken := self._next(burst=burst)) is not None:
                    self._run(taken)
            log.info("leaving", told=self.is_leaving, replaced=self._why_replaced)
        except Interrupted as exc:
            log.info("ending before the fleet was up", reason=str(exc))
        except RedisError as exc:
            if not self._departure.is_asked:
                raise RedisUnavailable(f"Redis does not answer ({exc}): start this worker again when it does") from exc
            log.warning("leaving without a last word: a job of this worker waits until its lease runs out")
        finally:
            self._leave()

    def _sign_up(self) -> None:
        """Take our place among the workers, and listen to RQ's commands."""
        logging.getLogger("rq.worker").setLevel(logging.WARNING)  # it would tell of the same
        self._insist(self.register_birth)
        self._insist(self.subscribe)
        self._insist(lambda: self.set_state(WorkerStatus.STARTED))
        self._insist(lambda: self._standing.take_place(self.connection))

    def _leave(self) -> None:
        try:
            if self.pubsub_thread is not None:
                self.teardown()
            if not self.must_restart:
                forget_worker(self.connection, self._standing.id)
        except RedisError as exc:
            log.warning("not signed off, the record of this worker will expire", error=str(exc))

    # --- taking a job

    def _next(self, *, burst: bool) -> Taken | None:
        """The next job; None when it is time to leave."""
        with self.connection.pubsub(ignore_subscribe_messages=True) as wake:  # type: ignore[no-untyped-call]
            self._insist(lambda: wake.subscribe(WAKE_CHANNEL))
            while not self._must_leave:
                try:
                    taken = self._take()
                    if taken is not None or burst:
                        return taken
                    self._await_word(wake)
                except RedisError as exc:
                    if not is_outage(exc):
                        raise
                    log.warning("Redis does not answer, trying again", error=str(exc))
                    time.sleep(_RETRY_S)
        return None

    @staticmethod
    def _await_word(wake: PubSub) -> None:
        """Wait for a queued job; of many at once one is enough."""
        if wake.get_message(timeout=_IDLE_S) is not None:
            while wake.get_message(timeout=0) is not None:
                pass

    def _take(self) -> Taken | None:
        if not self._controller.is_alive:
            self._why_replaced = "the fleet died while it was idle"
            log.error(self._why_replaced)
            return None
        self._heed(self._read_orders(None))
        self._note_idleness(self._find_idleness())
        if self._must_leave or self._why_idle:
            return None
        return self._dequeue.take()

    def _find_idleness(self) -> str:
        """Why no job is to be taken; empty if one may be."""
        if self._is_paused:
            return "paused"
        if is_suspended(self.connection):
            return "suspended by `rq suspend`"
        free = shutil.disk_usage(self._spool).free
        if free < self._settings.least_free_bytes:
            return f"no room for outputs: {self._spool} has less than {self._settings.least_free_bytes >> 20} MiB free"
        return ""

    def _note_idleness(self, reason: str) -> None:
        if reason != self._why_idle:
            log.warning("taking no job", reason=reason) if reason else log.info("taking jobs again")
            self._why_idle = reason

    # --- staying alive, in the thread of the heartbeat

    def _beat(self, redis: Redis) -> None:
        if (running := self._running) is not None:
            self._beat_lease(redis, running)  # first: it is what matters
        reaped = self._leases.reap(redis)
        for job_id in (*reaped.queued, *reaped.dead):
            log.warning("took a job back, its lease had run out", job_id=job_id, dead=job_id in reaped.dead)
        metrics.count_taken_back(reaped)
        self._leases.sweep(self.queue_names(), redis)
        self._sign_on(redis)
        if self._settings.metrics_port is not None:
            self._farm = read_farm(redis, self.queue_names())

    def _sign_on(self, redis: Redis) -> None:
        """Renew the records of this worker; a Redis that lost its last second may not have them any more."""
        self._standing.read_clock(redis)
        self._standing.read_gpus()
        write_worker(redis, self.record())
        if not self._controller.is_alive:
            return
        with self._record_lock, redis.pipeline() as pipeline:
            register(self, pipeline)
            self.heartbeat(round(self._settings.lease_s) + _RECORD_TTL_S, pipeline=pipeline)
            pipeline.execute()

    def register_birth(self) -> None:
        """RQ refuses a name that has a record. Ours is new, or our own; a beat may have come first."""
        with self._record_lock:
            self.connection.delete(self.key)
            super().register_birth()  # type: ignore[no-untyped-call]  # RQ's

    def record(self) -> WorkerRecord:
        """This worker, for whoever looks from outside. Any thread may call this."""
        running = self._running
        reason = self._why_replaced or self._why_idle
        return self._standing.record(self._find_state(), reason, running.record() if running else None)

    def view(self) -> View:
        """This worker, for its pages. Any thread may call this; it waits for nothing."""
        heartbeat, failed_starts = self._heartbeat, len(self.life.failed_starts)
        return View(self.record(), self._farm, failed_starts, heartbeat.unanswered_s, heartbeat.unlooked_s)

    def _find_state(self) -> WorkerState:
        if self._departure.is_asked:
            return WorkerState.DRAINING
        if not self._controller.is_alive:
            return WorkerState.STARTING
        if self._running is not None:
            return WorkerState.BUSY
        return WorkerState.PAUSED if self._why_idle else WorkerState.READY

    def _beat_lease(self, redis: Redis, running: Running) -> None:
        if running.attempt.is_stalled():
            return  # should we fail to end it, the lease must run out
        try:
            running.lease.beat(redis)
        except LeaseLost as exc:
            running.attempt.abort(Superseded(str(exc)))

    def _look(self) -> None:
        running, now = self._running, time.monotonic()
        if running is None:
            if self._departure.is_asked and not self._controller.is_alive:
                self._controller.shutdown(graceful_timeout=0)  # ends the start
            return
        if verdict := self._departure.verdict(running.attempt.step_left_s(), now):
            running.attempt.abort(verdict)
        if now > running.ends_at:
            running.attempt.abort(DeadlinePassed("its deadline has passed while it was rendered"))
        running.attempt.is_stalled()

    def _follow_orders(self, redis: Redis) -> None:
        """About once a second: what somebody has asked for."""
        running = self._running
        orders = self._read_orders(running, redis)
        self._heed(orders)
        if running is None:
            return
        if orders.cancel:
            self.kill_horse()
        elif orders.pause or self._must_leave:
            pass  # it would not take the job that it makes way for
        elif (job_id := self._dequeue.find_urgent(running.lease, redis)) is not None:
            log.info("making way", job_id=running.lease.job_id, urgent=job_id)
            running.attempt.abort(PutBack(f"made way for job {job_id}"))

    def _read_orders(self, running: Running | None, redis: Redis | None = None) -> Orders:
        names = (self._standing.name, self._standing.id)
        return self._leases.read_orders(names, running.lease if running else None, redis)

    def _heed(self, orders: Orders) -> None:
        self._is_paused = orders.pause
        if orders.leave and not self._departure.is_asked:
            log.info("told to drain")
            self._departure.ask(time.monotonic())

    def kill_horse(self, sig: int = 0) -> None:
        """What RQ calls to stop the running job; here it stops between two steps, and the fleet goes on."""
        if (running := self._running) is not None:
            running.attempt.abort(Canceled("somebody has asked for its end"))

    def clean_registries(self) -> None:
        """RQ's would fail jobs that run and queue others twice; ours is in each beat."""

    # --- running it

    def _run(self, taken: Taken) -> None:
        """One attempt, from its start to the word about its end."""
        lease = taken.lease
        with name_job(lease.job_id, lease.attempt):
            log.info("attempt begun", queue=lease.queue)
            self._insist(lambda: self._show(WorkerStatus.BUSY, lease.job_id))
            try:
                if self._must_leave:  # told so while the job was taken
                    self._end_badly(taken, PutBack(TOLD_TO_STOP))
                else:
                    self._render(taken)
            except LeaseLost as exc:
                log.warning("attempt discarded", reason=str(exc))
                metrics.count_discard()
            finally:
                self._running = None
            self._insist(lambda: self._show(WorkerStatus.IDLE, None))

    def _render(self, taken: Taken) -> None:
        lease = taken.lease
        attempt = Attempt(self._controller, taken.request, self._watch, self._settings.spool_dir)
        began_at = time.monotonic()
        self._running = Running(lease, attempt, began_at + taken.left_s)
        try:
            finished = attempt.run(self._open_outputs(taken, attempt))
        except WorkerError as exc:
            self._end_badly(taken, exc)
        except Exception as exc:  # nobody has a class for it: the job must not be lost with it
            log.exception("attempt broken")
            self._end_badly(taken, AttemptLost(f"{type(exc).__name__}: {exc}"))
        else:
            self._insist(lambda: lease.finish(finished, {"result_key": finished.result_key}))
            self._insist(self.increment_successful_job_count)  # for RQ's tools
            log.info("finished", result_key=finished.result_key)
            metrics.count_result(time.monotonic() - began_at)
            self._look_for_growth(count_pixels(taken.request))

    def _open_outputs(self, taken: Taken, attempt: Attempt) -> Outputs:
        settings = self._settings
        limits = OutputLimits(settings.upload_timeout_s, settings.spool_bytes, settings.least_free_bytes)
        return Outputs(
            self._store, settings.store_url, taken.lease, taken.request, limits=limits, on_failure=attempt.abort
        )

    def _end_badly(self, taken: Taken, error: WorkerError) -> None:
        lease = taken.lease
        tell = log.info if isinstance(error, PutBack | Canceled) else log.error
        tell("attempt ended", error=type(error).__name__, reason=str(error))
        if not error.fleet_is_healthy:
            self._why_replaced = self._why_replaced or type(error).__name__
        if isinstance(error, OutOfMemory):
            self.life = self.life.with_limit(count_pixels(taken.request) - 1)
        if isinstance(error, Superseded):
            raise LeaseLost(str(error)) from error
        if isinstance(error, Canceled):
            self._insist(lambda: lease.cancel(events.Canceled(attempt=lease.attempt)))
            metrics.count_end("canceled")
        elif error.job_may_retry:
            place = self._insist(lambda: lease.hand_back(error.charge, str(error)))
            log.warning("job handed back", place=place)
            metrics.count_loss(error, place)
        else:
            failed = events.Failed(attempt=lease.attempt, cause=error.cause, reason=printable(str(error)))
            self._insist(lambda: lease.fail(failed, "".join(traceback.format_exception(error))))
            metrics.count_end("failed", error.cause)
            self._insist(self.increment_failed_job_count)

    def _show(self, state: WorkerStatus, job_id: str | None) -> None:
        with self.connection.pipeline() as pipeline:
            self.set_state(state, pipeline=pipeline)
            self.set_current_job_id(job_id, pipeline=pipeline)
            pipeline.execute()

    def _look_for_growth(self, pixels: int) -> None:
        if reason := self._growth.look(pixels, read_ranks(self._controller), self._standing.gpus):
            log.warning("replacing the fleet", reason=reason)
            self._why_replaced = self._why_replaced or reason

    def _insist(self, ask: Callable[[], Answer]) -> Answer:
        """Through an outage of Redis, for as long as there is time."""
        return insist(ask, unless=lambda: self._departure.is_over(time.monotonic()))

    # --- being told to stop

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: the next look gives the job back at once. Never raises."""
        self._stop_requested = True
        self._departure.ask(time.monotonic())


def _stall_limits(settings: WorkerSettings) -> StallLimits:
    return StallLimits(
        first_step_s=settings.first_step_timeout_s,
        step_s=settings.step_timeout_s,
        clip_s=settings.clip_timeout_s,
        denoise_s=settings.denoise_timeout_s,
        decode_s=settings.decode_timeout_s,
    )
