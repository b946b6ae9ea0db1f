"""Submit a render and follow it. For programs; the command line is built on it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

from pydantic import SecretStr
from redis import Redis
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from jobs.connection import connect, redis_errors
from jobs.errors import JobFailed, JobNotFound, StoreUnavailable
from jobs.events import Event, EventLog, Failed, Finished, Queued
from jobs.queues import JOB_FUNCTION, NO_TIMEOUT, RECORD_TTL_S, QueueName, open_queue
from jobs.request import GenerateRequest, ResolvedRequest
from jobs.result import Result, result_key
from jobs.settings import ClientSettings
from jobs.store import Store

ENDED = {"finished", "failed", "stopped", "canceled"}  # RQ's words


class Client:
    """Talks to the queues of one Redis. Safe to share between threads."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._events = EventLog(redis)

    @classmethod
    def open(cls, url: str | None = None) -> Self:
        """Connect to a Redis URL, else to what the environment names. Raises RedisUnavailable."""
        settings = ClientSettings() if url is None else ClientSettings(REDIS_URL=SecretStr(url))
        return cls(connect(settings))

    def submit(self, request: GenerateRequest | Mapping[str, object], *, queue: str = QueueName.DEFAULT) -> "JobHandle":
        """Queue a render. The handle's request tells what sizes snapped to and which seed was drawn.

        Raises RequestInvalid before anything is queued.
        """
        checked = request if isinstance(request, GenerateRequest) else GenerateRequest.parse(request)
        resolved = checked.resolve()
        job_id = uuid4().hex
        with redis_errors():
            # First the event, so that its log begins with it however fast a worker is.
            self._events.append(job_id, Queued(queue=queue, request=resolved))
            open_queue(queue, self._redis).enqueue_call(
                JOB_FUNCTION,
                kwargs={"request": resolved.model_dump()},
                job_id=job_id,
                timeout=NO_TIMEOUT,
                result_ttl=RECORD_TTL_S,
                failure_ttl=RECORD_TTL_S,
                description=job_id,  # RQ's default would put the prompt into logs
            )
        return JobHandle(job_id, self._redis, self._events)

    def job(self, job_id: str) -> "JobHandle":
        """A job submitted earlier. Raises JobNotFound."""
        handle = JobHandle(job_id, self._redis, self._events)
        handle.status()
        return handle


@dataclass(frozen=True, slots=True)
class JobHandle:
    """One job, by its id."""

    id: str
    _redis: Redis
    _log: EventLog

    def status(self) -> str:
        """RQ's word for where the job is: queued, started, finished, failed, ... Raises JobNotFound."""
        try:
            with redis_errors():
                job = Job.fetch(self.id, connection=self._redis, serializer=JSONSerializer)
                return str(job.get_status(refresh=False).value)
        except NoSuchJobError as exc:
            raise JobNotFound(f"no job {self.id}: ids are printed by `h3render submit`; records stay 30 days") from exc

    def events(
        self, *, timeout_s: float | None = None, while_waiting: Callable[[], None] = lambda: None
    ) -> Iterator[Event]:
        """Every event from the first, then live, up to the last.

        Ends without a last one if the job has ended and nobody is left to tell it. Calls `while_waiting` about once a
        second while nothing is new; what it raises ends the wait. Raises TimeoutError after `timeout_s`.
        """

        def is_over() -> bool:
            while_waiting()
            return self._has_ended()

        with redis_errors():
            yield from self._log.follow(self.id, timeout_s=timeout_s, is_over=is_over)

    def _has_ended(self) -> bool:
        try:
            return self.status() in ENDED
        except JobNotFound:
            return True

    def news(self) -> list[Event]:
        """What has been told so far, without waiting."""
        with redis_errors():
            return self._log.read(self.id)

    def request(self) -> ResolvedRequest:
        """What is rendered, with everything snapped and drawn."""
        first = self.news()[0]
        assert isinstance(first, Queued)  # submit begins each log with it
        return first.request

    def wait(self, *, timeout_s: float | None = None) -> Finished:
        """Block until the result is committed. Raises JobFailed with the reason, or TimeoutError."""
        told = list(self.events(timeout_s=timeout_s))
        return self.conclude(told[-1] if told else None)

    def conclude(self, last: Event | None) -> Finished:
        """What the last event means: the job finished. Raises JobFailed with the reason if it did not."""
        if isinstance(last, Finished):
            return last
        if isinstance(last, Failed):
            raise JobFailed(f"job {self.id} failed in attempt {last.attempt}: {last.reason}")
        raise JobFailed(f"the events of job {self.id} stop before its end; `h3render status {self.id}` tells more")

    def result(self, store: Store) -> Result:
        """The committed result, from the store that the worker wrote to."""
        key = result_key(self.id)
        if store.stat(key) is None:
            raise StoreUnavailable(f"{store.url(key)} does not exist: is this the store that the worker writes to?")
        return Result.model_validate_json(store.get(key))

    def fetch(self, store: Store, folder: Path) -> Path:
        """Copy the video to `folder` and return its path."""
        target = folder / f"{self.id}.mp4"
        store.fetch(self.result(store).video_key, target)
        return target
