"""Objects of the store over HTTP: whole, in parts, or not again if the caller has them.

Source: RFC 9110, sections 13 and 14. Of several ranges in one request none is given, which is allowed; the whole is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from jobs.http.refusals import Refusal
from jobs.store import Store

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


def answer_with(store: Store, content: Content, request: Request) -> Response:
    """What the request's headers ask for. Raises Refusal for a part that is not there."""
    headers = {"ETag": content.etag, "Accept-Ranges": "bytes", "Cache-Control": content.cache_control}
    if content.name:
        headers["Content-Disposition"] = f'inline; filename="{content.name}"'
    if _is_known(request, content):
        return Response(status_code=304, headers=headers)
    part = _read_range(request, content)
    first, size = (0, content.size_bytes) if part is None else part
    headers["Content-Length"] = str(size)
    if part is not None:
        headers["Content-Range"] = f"bytes {first}-{first + size - 1}/{content.size_bytes}"
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=content.media_type)
    chunks = _begin(store.read_part(content.key, first, size))
    return StreamingResponse(chunks, status, headers, content.media_type)


def _begin(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """With the first piece read: what is not there is told before the answer has begun."""
    first = next(chunks, b"")

    def go_on() -> Iterator[bytes]:
        yield first
        yield from chunks

    return go_on()


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
