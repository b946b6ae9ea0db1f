"""The client for asyncio programs: `client` with `await`. Files and object stores are read in threads."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from redis.asyncio import Redis

from jobs.client import LINKS_HOLD_S
from jobs.connection import ANSWER_TIMEOUT_S, connect_async, require_bytes
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
from jobs.operation import run_async
from jobs.pictures import put_picture
from jobs.pieces import KeptPieces
from jobs.queues import QueueName
from jobs.request import GenerateRequest, ResolvedRequest
from jobs.result import NamedStore, Result, ResultURLs, fetch_video, link_result, read_result
from jobs.store import Store
from jobs.submission import Submission, Submitted, parse_submission, submit_all, submit_one


class AsyncClient:
    """Talks to the queues of one Redis. For the tasks of one event loop; `async with` closes it."""

    def __init__(self, redis: Redis, store: Store | str | None = None) -> None:
        """redis  whose answers are bytes, and which waits for longer than a second: `open` makes one

        store  that workers write to, or its URL; else the one that a job's last event names

        Raises SettingsInvalid.
        """
        require_bytes(redis)
        self.redis = redis
        self._store = NamedStore(store)

    @classmethod
    async def open(
        cls, url: str | None = None, *, store_url: str | None = None, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Self:
        """Connect to a Redis by its URL, and name a store by its own, else as the environment says.

        answer_timeout_s  how long Redis may be silent before a call is tried again, up to three times

        Raises RedisUnavailable.
        """
        from jobs.settings import ClientSettings, read_settings  # here, because they are slow to import

        settings = read_settings(ClientSettings, redis_url=url, store_url=store_url)
        store = settings.store_url if settings.names_store else None
        return cls(await connect_async(settings, answer_timeout_s=answer_timeout_s), store)

    async def aclose(self) -> None:
        await self.redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def submit(
        self,
        request: GenerateRequest | Mapping[str, object],
        *,
        queue: str = QueueName.DEFAULT,
        idempotency_key: str | None = None,
        webhook: str | None = None,
    ) -> "AsyncJobHandle":
        """Queue a render, as `Client.submit` does."""
        submission = parse_submission(request, queue, idempotency_key, webhook)
        return self._handle(await run_async(submit_one(submission), self.redis))

    async def submit_many(self, submissions: Iterable[Submission]) -> list[Submitted]:
        """Queue many renders in their order; what became of each."""
        return await run_async(submit_all(list(submissions)), self.redis)

    async def put_picture(self, source: str | Path) -> str:
        """Put a picture where workers find it, a file or an object of the store; its key for a request's frames.

        Raises PictureInvalid and StoreUnavailable.
        """
        return await asyncio.to_thread(lambda: put_picture(self._store.open(), source))

    async def job(self, job_id: str) -> "AsyncJobHandle":
        """A job submitted earlier. Raises JobNotFound."""
        await run_async(require_known(job_id), self.redis)
        return self._handle(job_id)

    def _handle(self, job_id: str) -> "AsyncJobHandle":
        return AsyncJobHandle(job_id, self.redis, self._store)


@dataclass(frozen=True, slots=True)
class AsyncJobHandle:
    """One job, by its id. Its methods do what those of `JobHandle` do."""

    id: str
    _redis: Redis
    _store: NamedStore

    async def status(self) -> JobStatus:
        return await run_async(read_status(self.id), self._redis)

    def events(self, *, since: str | None = None, timeout_s: float | None = None) -> AsyncIterator[Event]:
        """Every event from the first, then live, up to the last; or those after the one with the id `since`.

        Go on with `since` after TimeoutError, which may be wanted to keep a connection alive, and after
        RedisUnavailable: nothing is told twice or left out. A task that is cancelled while it waits here ends the
        iterator, so `asyncio.wait_for` will not do. Each follower takes a connection to Redis.
        """
        return self._follow(Reading(self.id, since, timeout_s))

    async def _follow(self, reading: Reading) -> AsyncGenerator[Event, None]:
        while not reading.is_over:
            told = reading.take(await run_async(reading.ask(), self._redis))
            for event in told:
                yield event
            if not told and not reading.is_over and await run_async(has_ended(self.id), self._redis):
                reading.note_end()

    async def news(self, *, since: str | None = None) -> list[Event]:
        return await run_async(read_news(self.id, since), self._redis)

    async def wait(self, *, timeout_s: float | None = None) -> Finished:
        told = [event async for event in self.events(timeout_s=timeout_s)]
        return await self.conclude(told[-1] if told else None)

    async def conclude(self, last: Event | None) -> Finished:
        return await run_async(conclude(self.id, last), self._redis)

    async def cancel(self, *, attempt: int | None = None) -> bool:
        return await run_async(cancel_job(self.id, attempt), self._redis)

    async def request(self) -> ResolvedRequest:
        return await run_async(read_request(self.id), self._redis)

    async def kept(self) -> KeptPieces:
        return await run_async(read_kept(self.id), self._redis)

    async def result(self) -> Result:
        return await asyncio.to_thread(read_result, await self._open_store(), self.id)

    async def fetch(self, folder: Path) -> Path:
        return await asyncio.to_thread(fetch_video, await self._open_store(), self.id, folder)

    async def urls(self, *, expires_s: int = LINKS_HOLD_S) -> ResultURLs:
        return await asyncio.to_thread(link_result, await self._open_store(), self.id, expires_s)

    async def _open_store(self) -> Store:
        told_url = await run_async(find_store_url(self.id), self._redis)
        return await asyncio.to_thread(self._store.find, told_url, self.id)
