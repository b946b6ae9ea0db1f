"""RQ around the fleet: takes one job at a time, reports its end, and leaves a sick fleet.

Subclasses SimpleWorker, so jobs run in this process beside the fleet, and keeps RQ's keys and registries, so that
`rq info` and any RQ client show the truth. RQ's own loop, dequeue, job execution, cleaning and signal handlers are not
used: they lose jobs over several queues, run any importable function, swallow errors, fail jobs that run, and raise
inside signal handlers.
"""

import shutil
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn
from uuid import uuid4

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
from jobs.connection import redis_errors
from jobs.errors import LeaseLost
from jobs.lease import WAKE_CHANNEL, Lease, Leases, printable
from jobs.offers import OFFER_FIELD, Offer
from jobs.queues import open_queue
from jobs.store import Store
from worker.attempt import Attempt
from worker.dequeue import Dequeue, Taken
from worker.errors import TOLD_TO_STOP, AttemptLost, Interrupted, Superseded, WorkerError
from worker.heartbeat import Heartbeat
from worker.mgpu import MGPUController
from worker.outage import insist, is_outage
from worker.outputs import OutputLimits, Outputs
from worker.settings import WorkerSettings
from worker.stall import StallLimits, StallWatch

ANSWER_TIMEOUT_S = 5  # of Redis: a worker asks for nothing that takes longer
_IDLE_S = 0.5  # between two looks at the queues, if no word comes
_RETRY_S = 1.0
_RECORD_TTL_S = 90  # of RQ's record of this worker, beyond a lease

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
        offer: Offer,
    ) -> None:
        name = f"{socket.gethostname()}-{uuid4().hex[:8]}"  # a fixed name is refused while a dead worker's key lives
        super().__init__(
            [open_queue(queue, redis) for queue in queues],
            name=name,
            connection=redis,
            serializer=JSONSerializer,
            log_job_description=False,
        )
        self._redis_url = redis_url
        self._controller, self._store, self._settings, self._offer = controller, store, settings, offer
        self._leases = Leases(redis, lease_s=settings.lease_s)
        self._dequeue = Dequeue(self._leases, queues, offer, name, longest_wait_s=settings.longest_wait_s)
        self._watch = StallWatch(
            StallLimits(settings.first_step_timeout_s, settings.step_timeout_s, settings.clip_timeout_s)
        )
        self._spool = settings.spool_dir or Path(tempfile.gettempdir())
        self._running: tuple[Lease, Attempt] | None = None
        self._stop_signals = 0
        self._fleet_is_lost = False
        self._record_lock = threading.Lock()
        self._had_room = True

    @property
    def connection_timeout(self) -> int:
        """RQ raises our client's limit of an answer to this, 415 s by its default: nothing here waits so long."""
        return ANSWER_TIMEOUT_S

    @property
    def must_restart(self) -> bool:
        """The fleet is no longer to be trusted, and nobody has asked for an end."""
        return self._fleet_is_lost and self._stop_signals == 0

    @property
    def _must_leave(self) -> bool:
        return self._fleet_is_lost or self._stop_signals > 0

    def serve(self, *, burst: bool) -> None:
        """Render until told to stop, until the fleet is lost, or (burst) until the queues are empty."""
        heartbeat = Heartbeat(self._redis_url, self._leases.beat_s, beat=self._beat, look=self._look)
        try:
            with heartbeat:
                with redis_errors():
                    self.bootstrap("WARNING")  # registers, and listens to RQ's commands
                self._install_signal_handlers()  # type: ignore[no-untyped-call]  # RQ's
                log.info("ready for jobs", worker=self.name, queues=self.queue_names(), offer=self._offer.model_dump())
                while (taken := self._next(burst=burst)) is not None:
                    self._run(taken)
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            self.teardown()  # type: ignore[no-untyped-call]  # RQ's
        except RedisError as exc:
            log.warning("not signed off, the record of this worker will expire", error=str(exc))

    # --- taking a job

    def _next(self, *, burst: bool) -> Taken | None:
        """The next job; None when it is time to leave."""
        with self.connection.pubsub(ignore_subscribe_messages=True) as wake:  # type: ignore[no-untyped-call]
            insist(lambda: wake.subscribe(WAKE_CHANNEL))
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
            log.error("the fleet died while it was idle")
            self._fleet_is_lost = True
            return None
        if is_suspended(self.connection) or not self._has_room():
            return None
        return self._dequeue.take()

    def _has_room(self) -> bool:
        free = shutil.disk_usage(self._spool).free
        had_room, self._had_room = self._had_room, free >= self._settings.least_free_bytes
        if had_room and not self._had_room:
            log.error("no room for outputs, taking no job", folder=str(self._spool), free_mib=free >> 20)
        return self._had_room

    # --- staying alive, in the thread of the heartbeat

    def _beat(self, redis: Redis) -> None:
        if (running := self._running) is not None:
            self._beat_lease(redis, *running)  # first: it is what matters
        reaped = self._leases.reap(redis)
        for job_id in (*reaped.queued, *reaped.dead):
            log.warning("took a job back, its lease had run out", job_id=job_id, dead=job_id in reaped.dead)
        self._leases.sweep(self.queue_names(), redis)
        self._sign_on(redis)

    def _sign_on(self, redis: Redis) -> None:
        """Renew RQ's record of this worker; a Redis that lost its last second may not have it any more."""
        with self._record_lock, redis.pipeline() as pipeline:
            register(self, pipeline)
            pipeline.hset(self.key, mapping={OFFER_FIELD: self._offer.model_dump_json()})
            self.heartbeat(round(self._settings.lease_s) + _RECORD_TTL_S, pipeline=pipeline)
            pipeline.execute()

    def register_birth(self) -> None:
        """RQ refuses a name that has a record. Ours is new; a beat may have come first."""
        with self._record_lock:
            self.connection.delete(self.key)
            super().register_birth()  # type: ignore[no-untyped-call]  # RQ's

    def _beat_lease(self, redis: Redis, lease: Lease, attempt: Attempt) -> None:
        if attempt.is_stalled():
            return  # should we fail to end it, the lease must run out
        try:
            lease.beat(redis)
        except LeaseLost as exc:
            attempt.abort(Superseded(str(exc)))

    def _look(self) -> None:
        if (running := self._running) is None:
            return
        if self._stop_signals > 1:
            running[1].abort(Interrupted(TOLD_TO_STOP))
        running[1].is_stalled()

    def clean_registries(self) -> None:
        """RQ's would fail jobs that run and queue others twice; ours is in each beat."""

    # --- running it

    def _run(self, taken: Taken) -> None:
        """One attempt, from its start to the word about its end."""
        lease = taken.lease
        with structlog.contextvars.bound_contextvars(job_id=lease.job_id, attempt=lease.attempt):
            log.info("attempt begun", queue=lease.queue)
            insist(lambda: self._show(WorkerStatus.BUSY, lease.job_id))
            try:
                if self._must_leave:  # told so while the job was taken
                    self._end_badly(lease, Interrupted(TOLD_TO_STOP))
                else:
                    self._render(taken)
            except LeaseLost as exc:
                log.warning("attempt discarded", reason=str(exc))
            finally:
                self._running = None
            insist(lambda: self._show(WorkerStatus.IDLE, None))

    def _render(self, taken: Taken) -> None:
        lease = taken.lease
        attempt = Attempt(self._controller, taken.request, self._watch, self._settings.spool_dir)
        self._running = (lease, attempt)
        try:
            finished = attempt.run(self._open_outputs(taken, attempt))
        except WorkerError as exc:
            self._end_badly(lease, exc)
        except Exception as exc:  # nobody has a class for it: the job must not be lost with it
            log.exception("attempt broken")
            self._end_badly(lease, AttemptLost(f"{type(exc).__name__}: {exc}"))
        else:
            insist(lambda: lease.finish(finished, {"result_key": finished.result_key}))
            log.info("finished", result_key=finished.result_key)

    def _open_outputs(self, taken: Taken, attempt: Attempt) -> Outputs:
        settings = self._settings
        limits = OutputLimits(settings.upload_timeout_s, settings.spool_bytes, settings.least_free_bytes)
        return Outputs(
            self._store, settings.store_url, taken.lease, taken.request, limits=limits, on_failure=attempt.abort
        )

    def _end_badly(self, lease: Lease, error: WorkerError) -> None:
        log.error("attempt ended", error=type(error).__name__, reason=str(error))
        self._fleet_is_lost = self._fleet_is_lost or not error.fleet_is_healthy
        if isinstance(error, Superseded):
            raise LeaseLost(str(error)) from error
        if error.job_may_retry:
            place = insist(lambda: lease.hand_back(error.charge, str(error)))
            log.warning("job handed back", place=place)
        else:
            failed = events.Failed(attempt=lease.attempt, cause=error.cause, reason=printable(str(error)))
            insist(lambda: lease.fail(failed, "".join(traceback.format_exception(error))))

    def _show(self, state: WorkerStatus, job_id: str | None) -> None:
        with self.connection.pipeline() as pipeline:
            self.set_state(state, pipeline=pipeline)
            self.set_current_job_id(job_id, pipeline=pipeline)
            pipeline.execute()

    # --- being told to stop

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """First signal: finish the job, take no more. Second: the next look gives the job back. Never raises."""
        self._stop_requested = True
        self._stop_signals += 1
