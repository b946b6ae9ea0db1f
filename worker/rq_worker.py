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
from jobs.lease import WAKE_CHANNEL, Leases, printable
from jobs.offers import count_pixels
from jobs.queues import open_queue
from jobs.render_times import RenderClass
from jobs.store import Store
from jobs.workers import forget_worker
from worker import metrics
from worker.attempt import Attempt
from worker.attendance import Attendance
from worker.departure import Departure
from worker.dequeue import Dequeue, Taken
from worker.duty import Duty, Running
from worker.errors import (
    TOLD_TO_STOP,
    AttemptLost,
    Canceled,
    Interrupted,
    OutOfMemory,
    PutBack,
    Superseded,
    WorkerError,
)
from worker.heartbeat import Heartbeat
from worker.life import Life, hearing_signals
from worker.logs import name_job
from worker.mgpu import MGPUController
from worker.outage import insist, is_outage
from worker.outputs import OutputLimits, Outputs
from worker.render_time import note_time, was_whole
from worker.settings import WorkerSettings
from worker.stall import StallLimits, StallWatch
from worker.standing import Standing
from worker.surroundings import ANSWER_TIMEOUT_S
from worker.view import View
from worker.vitals import Growth, GrowthLimits, read_ranks

_IDLE_S = 0.5  # between two looks at the queues, if no word comes
_RETRY_S = 1.0
_RECORD_TTL_S = 90  # of RQ's record of this worker, beyond a lease

Answer = TypeVar("Answer")

log = structlog.get_logger()


def render(**_: object) -> NoReturn:
    """What a job names. Stock RQ workers would call it, and have no fleet."""
    raise RuntimeError("this job needs `h3render worker`; `rq worker` cannot run it")


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
        self._record_lock = threading.Lock()
        self.duty = Duty(Departure(settings.drain_s))
        self._attendance = Attendance(
            self.duty,
            controller,
            self._leases,
            self._dequeue,
            standing,
            queues,
            sign_on=self._sign_on,
            sees_farm=settings.metrics_port is not None,
        )
        self._heartbeat = Heartbeat(
            redis_url,
            self._leases.beat_s,
            beat=self._attendance.beat,
            look=self._attendance.look,
            ask=self._attendance.follow_orders,
        )

    @property
    def connection_timeout(self) -> int:
        """RQ raises our client's limit of an answer to this, 415 s by its default: nothing here waits so long."""
        return ANSWER_TIMEOUT_S

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
            log.info("leaving", told=self.duty.is_leaving, replaced=self.duty.why_replaced)
        except Interrupted as exc:
            log.info("leaving before the fleet was up", reason=str(exc))
        except RedisError as exc:
            if not self.duty.is_leaving:
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
            if not self.duty.must_restart:
                forget_worker(self.connection, self._standing.id)
        except RedisError as exc:
            log.warning("not signed off, the record of this worker will expire", error=str(exc))

    # --- taking a job

    def _next(self, *, burst: bool) -> Taken | None:
        """The next job; None when it is time to leave."""
        with self.connection.pubsub(ignore_subscribe_messages=True) as wake:  # type: ignore[no-untyped-call]
            while not self.duty.must_leave:
                try:
                    if not wake.subscribed:
                        wake.subscribe(WAKE_CHANNEL)
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
            log.error("the fleet died while it was idle")
            self.duty.replace_fleet("it died while it was idle")
            return None
        self.duty.heed(self._attendance.read_orders(None))
        self.duty.note_idleness(self._find_idleness())
        if self.duty.must_leave or self.duty.why_idle:
            return None
        return self._dequeue.take()

    def _find_idleness(self) -> str:
        """Why no job is to be taken; empty if one may be."""
        if self.duty.is_paused:
            return "paused"
        if is_suspended(self.connection):
            return "suspended by `rq suspend`"
        free = shutil.disk_usage(self._spool).free
        if free < self._settings.least_free_bytes:
            return f"no room for outputs: {self._spool} has less than {self._settings.least_free_bytes >> 20} MiB free"
        return ""

    # --- its record in RQ

    def _sign_on(self, redis: Redis) -> None:
        """Renew it. In the thread of the heartbeat."""
        with self._record_lock, redis.pipeline() as pipeline:
            register(self, pipeline)
            self.heartbeat(round(self._settings.lease_s) + _RECORD_TTL_S, pipeline=pipeline)
            pipeline.execute()

    def register_birth(self) -> None:
        """RQ refuses a name that has a record. Ours is new, or our own; a beat may have come first."""
        with self._record_lock:
            self.connection.delete(self.key)
            super().register_birth()  # type: ignore[no-untyped-call]  # RQ's

    def view(self) -> View:
        """This worker, for its pages. Any thread may call this; it waits for nothing."""
        heartbeat, failed_starts = self._heartbeat, len(self.life.failed_starts)
        attendance = self._attendance
        return View(attendance.record(), attendance.farm, failed_starts, heartbeat.unanswered_s, heartbeat.unlooked_s)

    def kill_horse(self, sig: int = 0) -> None:
        """What RQ calls to stop a job that runs; here it stops between two steps, and the fleet goes on."""
        self._attendance.cancel(self._stopped_job_id)

    def clean_registries(self) -> None:
        """RQ's would fail jobs that run and queue others twice; ours is in each beat."""

    # --- running it

    def _run(self, taken: Taken) -> None:
        """One attempt, from its start to the word about its end."""
        lease = taken.lease
        with name_job(lease.job_id, lease.attempt):
            log.info("attempt begun", queue=lease.queue)
            self._note(lambda: self._show(WorkerStatus.BUSY, lease.job_id))
            try:
                if self.duty.must_leave:  # told so while the job was taken
                    self._end_badly(taken, PutBack(TOLD_TO_STOP))
                else:
                    self._render(taken)
            except LeaseLost as exc:
                log.warning("attempt discarded", reason=str(exc))
                metrics.count_discard()
            finally:
                self.duty.running = None
            self._note(lambda: self._show(WorkerStatus.IDLE, None))

    def _render(self, taken: Taken) -> None:
        lease = taken.lease
        attempt = Attempt(self._controller, taken.request, self._watch, self._settings.spool_dir)
        began_at = time.monotonic()
        self.duty.running = Running(lease, attempt, began_at + taken.left_s)
        try:
            finished = attempt.run(self._open_outputs(taken, attempt))
        except WorkerError as exc:
            self._end_badly(taken, exc)
        except Exception as exc:  # nobody has a class for it: the job must not be lost with it
            log.exception("attempt broken")
            self._end_badly(taken, AttemptLost(f"{type(exc).__name__}: {exc}"))
        else:
            seconds = time.monotonic() - began_at
            self._insist(lambda: lease.finish(finished, {"result_key": finished.result_key}))
            self._note(self.increment_successful_job_count)
            log.info("finished", result_key=finished.result_key)
            metrics.count_result(seconds)
            if was_whole(lease, finished):
                measured = RenderClass.of(taken.request, self._standing.offer, self._settings.attention)
                note_time(self.connection, measured, seconds)
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
            self.duty.replace_fleet(type(error).__name__)
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
            self._note(self.increment_failed_job_count)

    def _show(self, state: WorkerStatus, job_id: str | None) -> None:
        with self.connection.pipeline() as pipeline:
            self.set_state(state, pipeline=pipeline)
            self.set_current_job_id(job_id, pipeline=pipeline)
            pipeline.execute()

    def _look_for_growth(self, pixels: int) -> None:
        if reason := self._growth.look(pixels, read_ranks(self._controller), self._standing.gpus):
            log.warning("replacing the fleet", reason=reason)
            self.duty.replace_fleet(reason)

    def _insist(self, ask: Callable[[], Answer]) -> Answer:
        """Through an outage of Redis, for as long as there is time."""
        return insist(ask, unless=lambda: self.duty.departure.is_over(time.monotonic()))

    def _note(self, ask: Callable[[], object]) -> None:
        """A word for RQ's tools. It waits for Redis like any other, but no worker that is to leave stays for it."""
        try:
            insist(ask, unless=lambda: self.duty.departure.is_asked)
        except RedisError as exc:
            if not (is_outage(exc) and self.duty.departure.is_asked):
                raise
            log.warning("RQ's record of this worker is out of date", error=str(exc))

    # --- being told to stop

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: the next look gives the job back at once. Never raises."""
        self._stop_requested = True
        self.duty.ask_to_leave()


def _stall_limits(settings: WorkerSettings) -> StallLimits:
    return StallLimits(
        first_step_s=settings.first_step_timeout_s,
        step_s=settings.step_timeout_s,
        clip_s=settings.clip_timeout_s,
        denoise_s=settings.denoise_timeout_s,
        decode_s=settings.decode_timeout_s,
    )
