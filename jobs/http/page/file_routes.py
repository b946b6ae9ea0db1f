"""`/static/`: the page's own files. They need no token: there is nothing in them that the source has not."""

from fastapi import APIRouter, Request, Response

from jobs.http.page.answers import PageRoute
from jobs.http.page.static_files import PREFIX, read_files
from jobs.http.refusals import Refusal

STAYS = "public, max-age=31536000, immutable"

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(PREFIX + "{name:path}")
async def give_file(name: str, request: Request) -> Response:
    """One of them; for good, if it is called by its content."""
    found = read_files().get(name)
    if found is None:
        raise Refusal(404, "not_found", "there is no such file")
    is_named = request.query_params.get("v") == found.digest
    headers = {"Cache-Control": STAYS if is_named else "no-cache", "ETag": f'"{found.digest}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers, media_type=found.content_type)
