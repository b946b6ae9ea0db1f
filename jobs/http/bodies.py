"""What comes with a request: JSON, or a form with pictures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import UploadFile

from jobs.http.refusals import Refusal
from jobs.http.wishes import MOST_FIELDS, Wanted, parse_wish

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
MOST_FILES, MOST_FIELD_BYTES = 3, 1 << 20
MOST_MARKS = 50_000  # {, [ and comma in JSON; the longest prompt may be of nothing else


@dataclass(frozen=True, slots=True)
class Body:
    """The fields of a request."""

    fields: Mapping[str, object]
    uploads: Mapping[str, bytes]  # files, by their field


async def read_wish(request: Request) -> Wanted:
    """The render that a request asks for. Raises Refusal, RequestInvalid and PictureInvalid."""
    body = await read_body(request)
    return parse_wish(body.fields, body.uploads)


async def read_body(request: Request) -> Body:
    """Raises Refusal."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json":
        return Body(_parse_json(await request.body()), {})
    if media_type in FORMS:
        return await _read_form(request)
    raise Refusal(
        415,
        "unsupported_media_type",
        f"content-type {media_type[:100]!a} is not read: send JSON or multipart/form-data",
    )


def _parse_json(text: bytes) -> Mapping[str, object]:
    if sum(map(text.count, (b"{", b"[", b","))) > MOST_MARKS:  # millions of parts would take gigabytes
        raise Refusal(400, "invalid_json", "the body has more parts than a request could have")
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise Refusal(400, "invalid_json", f"the body is no JSON that can be read: {exc}") from exc
    if not isinstance(fields, dict):
        raise Refusal(400, "invalid_json", "the body is JSON, and no object: write {...}")
    return fields


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not of JSON")


async def _read_form(request: Request) -> Body:
    """An empty field is one that was left empty; one that comes twice is refused."""
    fields: dict[str, object] = {}
    uploads: dict[str, bytes] = {}
    form = request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=MOST_FIELD_BYTES)
    async with form as parts:
        for name, value in parts.multi_items():
            if name in fields or name in uploads:
                raise Refusal(400, "invalid_form", f"{name[:100]!a} is there twice: give it once")
            if isinstance(value, UploadFile):
                if body := await value.read():  # a form of a browser has the empty ones, too
                    uploads[name] = body
            elif value:
                fields[name] = value
    return Body(fields, uploads)
