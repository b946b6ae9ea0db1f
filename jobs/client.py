"""Submit a render and follow it. For programs; the command line is built on it."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast
from uuid import uuid4

from pydantic import SecretStr
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from jobs.connection import connect, redis_errors
from jobs.errors import CancelRefused, JobFailed, JobNotFound, KeyConflict, StoreUnavailable
from jobs.events import Canceled, Dead, Event, EventLog, Failed, Finished, Queued, Unknown
from jobs.lease import LeaseScript
from jobs.pieces import KeptPieces
from jobs.queues import JOB_FUNCTION, NO_TIMEOUT, RECORD_TTL_S, QueueName
from jobs.request import GenerateRequest, ResolvedRequest
from jobs.result import Result, result_key
from jobs.settings import ClientSettings
from jobs.store import Store
from jobs.workers import explain_waiting, is_queue_paused, read_workers

KEY_KEY = "h3:key:{digest}"  # of an idempotency key: job id, digest of the request
ENDED = {"finished", "failed", "dead", "stopped", "canceled"}


class Client:
    """Talks to the queues of one Redis. Safe to share between threads."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._events = EventLog(redis)
        self._script = LeaseScript(redis)

    @classmethod
    def open(cls, url: str | None = None) -> Self:
        """Connect to a Redis URL, else to what the environment names. Raises RedisUnavailable."""
        settings = ClientSettings() if url is None else ClientSettings(REDIS_URL=SecretStr(url))
        return cls(connect(settings))

    def submit(
        self,
        request: GenerateRequest | Mapping[str, object],
        *,
        queue: str = QueueName.DEFAULT,
        idempotency_key: str | None = None,
    ) -> "JobHandle":
        """Queue a render. The handle's request tells what sizes snapped to and which seed was drawn.

        With a key the call may be repeated, for instance when its answer was lost: it gives the same job.
        Raises RequestInvalid before anything is queued, and KeyConflict if the key stands for another request.
        """
        checked = request if isinstance(request, GenerateRequest) else GenerateRequest.parse(request)
        resolved = checked.resolve()
        job = Job.create(
            JOB_FUNCTION,
            kwargs={"request": resolved.model_dump()},
            connection=self._redis,
            id=uuid4().hex,
            timeout=NO_TIMEOUT,
            result_ttl=RECORD_TTL_S,
            failure_ttl=RECORD_TTL_S,
            description="render",  # RQ's default would put the prompt into logs
            serializer=JSONSerializer,
        )
        key = "" if idempotency_key is None else KEY_KEY.format(digest=_sha256(idempotency_key))
        fields = (part for pair in job.to_dict().items() for part in pair)
        event = Queued(queue=queue, request=resolved).model_dump_json()
        with redis_errors():
            outcome, job_id = self._script.call(
                "submit", job.id, queue, key, _sha256(checked.model_dump_json() + queue), event, *fields
            )
        if outcome == b"conflict":
            raise KeyConflict(
                f"idempotency key {idempotency_key!r} stands for another request, job {job_id.decode()}: take a new key"
            )
        return JobHandle(job_id.decode(), self._redis, self._events, self._script)

    def job(self, job_id: str) -> "JobHandle":
        """A job submitted earlier. Raises JobNotFound."""
        handle = JobHandle(job_id, self._redis, self._events, self._script)
        handle.status()
        return handle


@dataclass(frozen=True, slots=True)
class JobHandle:
    """One job, by its id."""

    id: str
    _redis: Redis
    _log: EventLog
    _script: LeaseScript

    def status(self) -> str:
        """Where the job is: queued, started, finished, failed, dead, ... Raises JobNotFound."""
        with redis_errors():
            outcome, status = self._redis.hmget(f"rq:job:{self.id}", "h3_outcome", "status")
        if status is None:
            raise _not_found(self.id)
        # First ours: RQ's readers may take a finished job for an abandoned one.
        return cast(bytes, outcome or status).decode("utf-8", "replace")

    def waiting_for(self) -> str:
        """Why no worker that is alive will take the queued job; empty if one will."""
        if self.status() != "queued":
            return ""  # the rest reads all that was told of the job, and followers ask every second
        first = self.news()[:1]
        if not first or not isinstance(first[0], Queued):
            return ""
        with redis_errors():
            if is_queue_paused(self._redis, first[0].queue):
                return f"waiting: queue {first[0].queue} is paused"
            return explain_waiting(first[0].request, first[0].queue, read_workers(self._redis))

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

    def cancel(self, *, attempt: int | None = None) -> bool:
        """Ask for the job's end; whether it has ended by that, because it waited.

        A running attempt stops between two steps and keeps what it has published; the events tell when. With `attempt`
        only that one is meant. Raises JobNotFound, and CancelRefused if the job has ended or another attempt runs.
        """
        with redis_errors():
            answer = self._script.call("cancel", self.id, "" if attempt is None else attempt)
        outcome, detail = (str(part, "utf-8") for part in answer)
        match outcome:
            case "unknown":
                raise _not_found(self.id)
            case "ended":
                raise CancelRefused(f"job {self.id} has ended: {detail}")
            case "other":
                now = f"attempt {detail} runs" if detail else "none runs"
                raise CancelRefused(f"attempt {attempt} of job {self.id} is not running: {now}")
        return outcome == "canceled"

    def news(self) -> list[Event]:
        """What has been told so far, without waiting."""
        with redis_errors():
            return self._log.read(self.id)

    def kept(self) -> KeptPieces:
        """What the next attempt can go on from."""
        with redis_errors():
            return KeptPieces.parse(self._redis.hget(f"rq:job:{self.id}", "h3_kept") or b"")

    def request(self) -> ResolvedRequest:
        """What is rendered, with everything snapped and drawn. Raises JobNotFound if it can no longer be read."""
        first = self.news()[:1]
        if not first or not isinstance(first[0], Queued):  # submit begins each log with it
            raise JobNotFound(f"what job {self.id} renders cannot be read here: {_gap(first)}")
        return first[0].request

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
        if isinstance(last, Canceled):
            raise JobFailed(f"job {self.id} was canceled")
        if isinstance(last, Dead):
            reasons = "; ".join(f"attempt {loss.attempt}: {loss.reason}" for loss in last.losses)
            raise JobFailed(f"job {self.id} has used up its attempts ({reasons}): see `h3render dead`")
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


def _gap(first: list[Event]) -> str:
    return first[0].told if first and isinstance(first[0], Unknown) else "its events are gone"


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id}: ids are printed by `h3render submit`; records stay 30 days")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
