"""RQ around the fleet: takes one job at a time, counts the attempt, reports its end, and leaves a sick fleet.

Subclasses SimpleWorker, so jobs run in this process beside the fleet, and keeps RQ's keys and registries, so that
`rq info` and any RQ client show the truth. RQ's own dequeue, job execution and signal handlers are not used: they
lose jobs over several queues, run any importable function, and raise inside signal handlers.
"""

import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import NoReturn, TypeVar
from uuid import uuid4

import structlog
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq import Queue, SimpleWorker
from rq.exceptions import DeserializationError, NoSuchJobError, StopRequested
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.utils import as_text
from rq.worker import WorkerStatus

from jobs import events
from jobs.errors import RequestInvalid
from jobs.events import EventLog
from jobs.queues import JOB_FUNCTION, open_queue
from jobs.request import ResolvedRequest, parse_resolved
from jobs.store import Store
from worker.attempt import run_attempt
from worker.errors import AttemptLost, RequestRefused, WorkerError
from worker.heartbeat import LEASE_S, Heartbeat
from worker.mgpu import MGPUController
from worker.outputs import Outputs
from worker.settings import WorkerSettings

MOST_LOST_ATTEMPTS = 3
# On RQ's job hash, which keeps fields that it does not know.
ATTEMPTS_FIELD = "h3_attempts"  # begun
LOST_FIELD = "h3_lost_attempts"  # lost by the job's or the fleet's fault
OUTAGE_S = 120.0
REDIS_OUTAGE = (RedisConnectionError, RedisTimeoutError)
_POLL_S = 0.1
_RETRY_S = 1.0
_IDLE_BEAT_S = 10.0

Written = TypeVar("Written")

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
        self._controller, self._store, self._settings = controller, store, settings
        self._events = EventLog(redis)
        self._stop_signals = 0
        self._fleet_is_lost = False
        self._queues_are_empty = False

    @property
    def must_restart(self) -> bool:
        """The fleet is no longer to be trusted, and nobody has asked for an end."""
        return self._fleet_is_lost and self._stop_signals == 0

    @property
    def ended_in_order(self) -> bool:
        """`work` returned because it was told to, or (burst) ran out of jobs."""
        return self._must_leave or self._queues_are_empty

    @property
    def _must_leave(self) -> bool:
        return self._fleet_is_lost or self._stop_signals > 0

    # --- taking a job

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """The next job of the first queue that has one; None when `timeout` is None (burst) and all are empty."""
        self.set_state(WorkerStatus.IDLE)
        beat_at = 0.0
        while not self._must_leave:
            try:
                if time.monotonic() >= beat_at:
                    self._beat_idle()
                    beat_at = time.monotonic() + _IDLE_BEAT_S
                if (taken := self._take()) is not None:
                    return taken
                if timeout is None:
                    self._queues_are_empty = True
                    return None
                time.sleep(_POLL_S)
            except REDIS_OUTAGE as exc:
                log.warning("Redis does not answer, trying again", error=str(exc))
                time.sleep(_RETRY_S)
        raise StopRequested

    def _beat_idle(self) -> None:
        self.heartbeat()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()  # type: ignore[no-untyped-call]  # RQ's

    def _take(self) -> tuple[Job, Queue] | None:
        for queue in self.queues:
            # LMOVE, one queue at a time: what is taken is always in a list, whenever this process dies.
            while job_id := self.connection.lmove(queue.key, queue.intermediate_queue_key, "LEFT", "RIGHT"):
                if (job := self._fetch(as_text(job_id), queue)) is not None:
                    return job, queue
        return None

    def _fetch(self, job_id: str, queue: Queue) -> Job | None:
        try:
            return Job.fetch(job_id, connection=self.connection, serializer=JSONSerializer)
        except NoSuchJobError:
            log.warning("job has no record, dropped from its queue", job_id=job_id)
            self.connection.lrem(queue.intermediate_queue_key, 0, job_id)
            return None

    # --- running it

    def execute_job(self, job: Job, queue: Queue) -> None:
        """One attempt, from its start to the word about its end."""
        with structlog.contextvars.bound_contextvars(job_id=job.id):
            try:
                request = read_payload(job)
            except RequestRefused as exc:
                self._refuse(job, queue, exc)
                return
            # Never reused: what an attempt has written under its number stays as it is.
            attempt = self.connection.hincrby(job.key, ATTEMPTS_FIELD, 1)
            self.prepare_execution(job)
            self.prepare_job_execution(job, remove_from_intermediate_queue=True)
            job.started_at = datetime.now(UTC)
            with (
                structlog.contextvars.bound_contextvars(attempt=attempt),
                Heartbeat(self._redis_url, lambda pipeline: self._beat(job, pipeline)),
            ):
                self._run(job, queue, request, attempt)
            self.set_state(WorkerStatus.IDLE)

    def _run(self, job: Job, queue: Queue, request: ResolvedRequest, attempt: int) -> None:
        outputs = Outputs(self._store, self._settings.store_url, job.id, attempt, request)
        try:
            self._tell(job, events.Started(attempt=attempt, worker=self.name))
            finished = run_attempt(
                self._controller, request, outputs, lambda event: self._tell(job, event), self._settings.spool_dir
            )
        except WorkerError as exc:
            self._end_badly(job, queue, attempt, exc)
        except Exception as exc:  # RQ's loop would swallow it, and the job with it
            log.exception("attempt broken")
            self._end_badly(job, queue, attempt, AttemptLost(f"{type(exc).__name__}: {exc}"))
        else:
            self._succeed(job, queue, finished)

    def get_heartbeat_ttl(self, job: Job) -> int:
        """RQ's own answer is the job's time-out, which leaves a dead machine's job invisible for hours."""
        return LEASE_S

    def _beat(self, job: Job, pipeline: Pipeline) -> None:
        self.heartbeat(LEASE_S, pipeline=pipeline)
        if (execution := self.execution) is not None:
            execution.heartbeat(job.started_job_registry, LEASE_S, pipeline=pipeline)

    def _tell(self, job: Job, event: events.Event) -> None:
        log.info(event.kind.replace("_", " "), **event.model_dump(exclude={"kind", "attempt", "worker"}))
        insist(lambda: self._events.append(job.id, event))

    # --- ending it

    def _succeed(self, job: Job, queue: Queue, finished: events.Finished) -> None:
        job.ended_at = datetime.now(UTC)
        job._result = {"result_key": finished.result_key}
        job._status = JobStatus.FINISHED
        self._end(lambda: self.handle_job_success(job, queue, queue.started_job_registry))
        self._tell(job, finished)

    def _end_badly(self, job: Job, queue: Queue, attempt: int, error: WorkerError) -> None:
        log.error("attempt ended", error=type(error).__name__, reason=str(error))
        self._fleet_is_lost = self._fleet_is_lost or not error.fleet_is_healthy
        lost = insist(lambda: self.connection.hincrby(job.key, LOST_FIELD, int(error.attempt_is_charged)))
        if error.job_may_retry and lost < MOST_LOST_ATTEMPTS:
            self._tell(job, events.AttemptLost(attempt=attempt, reason=str(error)))
            self._hand_back(job, queue)
        else:
            self._fail(job, queue, attempt, error)

    def _hand_back(self, job: Job, queue: Queue) -> None:
        def write() -> None:
            with self.connection.pipeline() as pipeline:
                self.cleanup_execution(job, pipeline)
                job.set_status(JobStatus.QUEUED, pipeline=pipeline)
                queue.push_job_id(job.id, pipeline=pipeline, at_front=True)
                pipeline.execute()

        self._end(write)

    def _fail(self, job: Job, queue: Queue, attempt: int, error: WorkerError) -> None:
        job.ended_at = datetime.now(UTC)
        text = "".join(traceback.format_exception(error))

        def write() -> None:
            self.handle_job_failure(job, queue, queue.started_job_registry, exc_string=text)
            if job.get_status(refresh=True) is not JobStatus.FAILED:  # RQ keeps a lost connection to itself here
                raise RedisConnectionError("the failure was not recorded")

        self._end(write)
        self._tell(job, events.Failed(attempt=attempt, reason=str(error)))

    def _end(self, write: Callable[[], None]) -> None:
        """Insist on the write that ends an attempt, and its record in RQ's registry of running jobs with it."""
        execution = self.execution

        def write_again() -> None:
            self.execution = execution  # RQ forgets it before Redis has taken the write
            write()

        insist(write_again)

    def _refuse(self, job: Job, queue: Queue, error: RequestRefused) -> None:
        """Fail a job that never began: RQ's own preparation would read the payload, and raise."""
        log.error("job refused", reason=str(error))
        insist(lambda: self.connection.lrem(queue.intermediate_queue_key, 0, job.id))
        self._fail(job, queue, 0, error)

    # --- being told to stop

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """First signal: finish the job, take no more. Second: give the job back now. Never raises."""
        self._stop_requested = True
        self._stop_signals += 1
        if self._stop_signals == 2 and self.execution is not None:
            # In a thread: a handler must not wait, and the blocked stream wakes up when the fleet is gone.
            threading.Thread(target=self._controller.shutdown, kwargs={"graceful_timeout": 0}).start()


def insist(write: Callable[[], Written]) -> Written:
    """Repeat a write while Redis does not answer, for up to OUTAGE_S: an outage must not cost a render."""
    deadline = time.monotonic() + OUTAGE_S
    while True:
        try:
            return write()
        except REDIS_OUTAGE as exc:
            if time.monotonic() > deadline:
                raise
            log.warning("Redis does not answer, trying again", error=str(exc))
            time.sleep(_RETRY_S)


def read_payload(job: Job) -> ResolvedRequest:
    """The request that a job carries. Raises RequestRefused for anything but a call of our one function."""
    try:
        if job.func_name != JOB_FUNCTION:
            raise RequestRefused(f"job calls {job.func_name}; this worker runs {JOB_FUNCTION} only")
        return parse_resolved(job.kwargs.get("request"))
    except RequestInvalid as exc:
        raise RequestRefused(str(exc)) from exc
    except DeserializationError as exc:
        raise RequestRefused("job carries no readable call: submit it with `h3render submit` or jobs.Client") from exc
