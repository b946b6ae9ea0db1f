"""Submit a render and follow it. For programs; the command line is built on it. `async_client` is its asyncio twin."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from redis import Redis

from jobs.connection import ANSWER_TIMEOUT_S, connect, require_bytes
from jobs.events import Event, Finished, Reading
from jobs.job_calls import (
    cancel_job,
    conclude,
    find_store_url,
    has_ended,
    read_kept,
    read_news,
    read_request,
    require_known,
)
from jobs.job_status import JobStatus, read_status
from jobs.operation import run
from jobs.pictures import put_picture
from jobs.pieces import KeptPieces
from jobs.queues import QueueName
from jobs.request import GenerateRequest, ResolvedRequest
from jobs.result import NamedStore, Result, ResultURLs, fetch_video, link_result, read_result
from jobs.store import Store
from jobs.submission import Submission, Submitted, parse_submission, submit_all, submit_one

LINKS_HOLD_S = 3600


class Client:
    """Talks to the queues of one Redis. Safe to share between threads; `with` closes it."""

    def __init__(self, redis: Redis, store: Store | str | None = None) -> None:
        """redis  whose answers are bytes, and which waits for longer than a second: `open` makes one

        store  that workers write to, or its URL; else the one that a job's last event names

        Raises SettingsInvalid.
        """
        require_bytes(redis)
        self.redis = redis
        self._store = NamedStore(store)

    @classmethod
    def open(
        cls, url: str | None = None, *, store_url: str | None = None, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Self:
        """Connect to a Redis by its URL, and name a store by its own, else as the environment says.

        answer_timeout_s  how long Redis may be silent before a call is tried again, up to three times

        Raises RedisUnavailable.
        """
        from jobs.settings import ClientSettings, read_settings  # here, because they are slow to import

        settings = read_settings(ClientSettings, redis_url=url, store_url=store_url)
        store = settings.store_url if settings.names_store else None
        return cls(connect(settings, answer_timeout_s=answer_timeout_s), store)

    def close(self) -> None:
        self.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def submit(
        self,
        request: GenerateRequest | Mapping[str, object],
        *,
        queue: str = QueueName.DEFAULT,
        idempotency_key: str | None = None,
        webhook: str | None = None,
    ) -> "JobHandle":
        """Queue a render. The handle's request tells what sizes snapped to and which seed was drawn.

        With a key the call may be repeated, for instance when its answer was lost: it gives the same job.
        Raises RequestInvalid before anything is queued, KeyConflict if the key stands for another request, and
        RedisUnavailable.
        """
        submission = parse_submission(request, queue, idempotency_key, webhook)
        return self._handle(run(submit_one(submission), self.redis))

    def submit_many(self, submissions: Iterable[Submission]) -> list[Submitted]:
        """Queue many renders in their order, some thousand a second; what became of each.

        If it breaks off, those with a key can be submitted again. Raises RedisUnavailable.
        """
        return run(submit_all(list(submissions)), self.redis)

    def put_picture(self, source: str | Path) -> str:
        """Put a picture where workers find it, a file or an object of the store; its key for a request's frames.

        Raises PictureInvalid and StoreUnavailable.
        """
        return put_picture(self._store.open(), source)

    def job(self, job_id: str) -> "JobHandle":
        """A job submitted earlier. Raises JobNotFound."""
        run(require_known(job_id), self.redis)
        return self._handle(job_id)

    def _handle(self, job_id: str) -> "JobHandle":
        return JobHandle(job_id, self.redis, self._store)


@dataclass(frozen=True, slots=True)
class JobHandle:
    """One job, by its id."""

    id: str
    _redis: Redis
    _store: NamedStore

    def status(self) -> JobStatus:
        """Where the job stands; of a job that Redis has no record of, that it is unknown."""
        return run(read_status(self.id), self._redis)

    def events(
        self,
        *,
        since: str | None = None,
        timeout_s: float | None = None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> Iterator[Event]:
        """Every event from the first, then live, up to the last; or those after the one with the id `since`.

        Ends without a last one if the job has ended and nobody is left to tell it. Calls `while_waiting` about once a
        second while nothing is new; what it raises ends the wait. Raises TimeoutError after `timeout_s`, and
        RedisUnavailable: after both it can be gone on with by `since`; and EventIdInvalid, at once. Each follower takes
        a connection to Redis.
        """
        return self._follow(Reading(self.id, since, timeout_s), while_waiting)

    def _follow(self, reading: Reading, while_waiting: Callable[[], None]) -> Iterator[Event]:
        while not reading.is_over:
            told = reading.take(run(reading.ask(), self._redis))
            yield from told
            if not told and not reading.is_over:
                while_waiting()
                if run(has_ended(self.id), self._redis):
                    reading.note_end()

    def news(self, *, since: str | None = None) -> list[Event]:
        """What has been told so far, or since an event, without waiting."""
        return run(read_news(self.id, since), self._redis)

    def wait(self, *, timeout_s: float | None = None) -> Finished:
        """Block until the result is committed. Raises JobFailed with the reason, or TimeoutError."""
        told = list(self.events(timeout_s=timeout_s))
        return self.conclude(told[-1] if told else None)

    def conclude(self, last: Event | None) -> Finished:
        """What the last event means: the job finished. Raises JobFailed with the reason if it did not."""
        return run(conclude(self.id, last), self._redis)

    def cancel(self, *, attempt: int | None = None) -> bool:
        """Ask for the job's end; whether it has ended by that, because it waited.

        A running attempt stops between two steps and keeps what it has published; the events tell when. With `attempt`
        only that one is meant. Raises JobNotFound, and CancelRefused if the job has ended or another attempt runs.
        """
        return run(cancel_job(self.id, attempt), self._redis)

    def request(self) -> ResolvedRequest:
        """What is rendered, with everything snapped and drawn. Raises JobNotFound if it can no longer be read."""
        return run(read_request(self.id), self._redis)

    def kept(self) -> KeptPieces:
        """What the next attempt can go on from."""
        return run(read_kept(self.id), self._redis)

    def result(self) -> Result:
        """The committed result. Raises JobNotFinished, JobFailed, JobNotFound and StoreUnavailable."""
        return read_result(self._open_store(), self.id)

    def fetch(self, folder: Path) -> Path:
        """Copy the video to `folder` and return its path. Raises what `result` does."""
        return fetch_video(self._open_store(), self.id, folder)

    def urls(self, *, expires_s: int = LINKS_HOLD_S) -> ResultURLs:
        """Where anybody can read the result for so long, without keys; at most 7 days. Raises what `result` does."""
        return link_result(self._open_store(), self.id, expires_s)

    def _open_store(self) -> Store:
        return self._store.find(run(find_store_url(self.id), self._redis), self.id)
