"""Objects of the store over HTTP: whole, in parts, or not again if the caller has them.

Source: RFC 9110, sections 13 and 14. Of several ranges in one request none is given, which is allowed; the whole is.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from jobs.errors import JobNotFound, StoreRefused
from jobs.http.refusals import Refusal
from jobs.http.store_threads import Chunks, StoreThreads

STAYS = "private, max-age=31536000, immutable"
CHANGES = "private, no-cache"
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))", re.ASCII)


@dataclass(frozen=True, slots=True)
class Content:
    """One object, and what is told of it."""

    key: str
    size_bytes: int
    tag: str  # another one for other bytes
    media_type: str
    cache_control: str = CHANGES
    name: str = ""  # to save it under

    @property
    def etag(self) -> str:
        return f'"{self.tag}"'


async def answer_with(store: StoreThreads, content: Content, request: Request) -> Response:
    """What the request's headers ask for. Raises Refusal for a part that is not there, JobNotFound if nothing is."""
    headers = {"ETag": content.etag, "Accept-Ranges": "bytes", "Cache-Control": content.cache_control}
    if content.name:
        headers["Content-Disposition"] = f'inline; filename="{content.name}"'
    if _is_known(request, content):
        return Response(status_code=304, headers=headers)
    part = _read_range(request, content) if request.method == "GET" else None
    first, size = (0, content.size_bytes) if part is None else part
    headers["Content-Length"] = str(size)
    if part is not None:
        headers["Content-Range"] = f"bytes {first}-{first + size - 1}/{content.size_bytes}"
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=content.media_type)
    body = await _open(store, content, first, size)
    return StreamingResponse(body, status, headers, content.media_type)


async def _open(store: StoreThreads, content: Content, first: int, size: int) -> AsyncIterator[bytes]:
    """With the first piece read: what is not there is told before the answer has begun."""
    chunks = await store.ask(lambda objects: Chunks(objects.read_part(content.key, first, size)))
    try:
        begin = await store.ask(lambda _: chunks.take())
    except StoreRefused as exc:
        if await store.ask(lambda objects: objects.find(content.key)) is None:
            raise JobNotFound("what is asked for is no longer in the store: render it again") from exc
        raise
    return _go_on(store, chunks, begin)


async def _go_on(store: StoreThreads, chunks: Chunks, chunk: bytes) -> AsyncIterator[bytes]:
    try:
        while chunk:
            yield chunk
            chunk = await store.ask(lambda _: chunks.take())
    finally:  # also when the caller has hung up
        store.leave(chunks.close)


def _is_known(request: Request, content: Content) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return content.etag in tags or tags == ["*"]


def _read_range(request: Request, content: Content) -> tuple[int, int] | None:
    """First byte and size of the part that is asked for; None for the whole."""
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if not match or request.headers.get("if-range", content.etag) != content.etag:
        return None
    whole, suffix = content.size_bytes, match[3]
    first = max(0, whole - int(suffix)) if suffix else int(match[1])
    last = min(int(match[2]), whole - 1) if match[2] else whole - 1
    if match[2] and int(match[2]) < first:
        return None  # no range at all, as the RFC has it
    if first >= whole or suffix == "0":
        raise Refusal(
            416,
            "range_not_satisfiable",
            f"{request.headers['range']} begins beyond the {whole} bytes that there are",
            {"Content-Range": f"bytes */{whole}"},
        )
    return first, last - first + 1
