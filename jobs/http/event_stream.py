"""A job's events as server-sent events. Source: HTML Living Standard, section 9.2."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from jobs.async_client import AsyncJobHandle
from jobs.errors import RedisUnavailable
from jobs.events import Event

KEEP_ALIVE_S = 15.0  # between two signs of life; proxies end what is silent for a minute
AGAIN_S = 1.0
MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would collect it


async def is_at_end(job: AsyncJobHandle, since: str | None) -> bool:
    """Whether nothing will follow. Then 204 tells a browser, which else would ask for ever, to stop.

    Raises EventIdInvalid and RedisUnavailable.
    """
    return (await job.status()).is_ended and not await job.news(since=since)


class EventStream(StreamingResponse):
    """All events after one, to the last. While Redis is away it waits: nothing is told twice or left out."""

    def __init__(self, job: AsyncJobHandle, since: str | None, at_end: Callable[[], None]) -> None:
        """at_end  called once, also when the caller hangs up before the first event"""
        super().__init__(_stream(job, since), media_type=MEDIA_TYPE, headers=HEADERS)
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()


async def _stream(job: AsyncJobHandle, since: str | None) -> AsyncIterator[bytes]:
    yield f"retry: {AGAIN_S * 1000:.0f}\n\n".encode()
    while True:
        try:
            async for event in job.events(since=since, timeout_s=KEEP_ALIVE_S):
                since = event.id
                yield encode_event(event)
        except TimeoutError:
            yield b": nothing new\n\n"
        except RedisUnavailable:
            yield b": the queue does not answer\n\n"
            await asyncio.sleep(AGAIN_S)
        else:
            return


def encode_event(event: Event) -> bytes:
    """With its id to go on from, and its kind as the event's name."""
    told = {"id": event.id, "at": event.at and event.at.isoformat(), **event.model_dump(mode="json")}
    return f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(told)}\n\n".encode()
