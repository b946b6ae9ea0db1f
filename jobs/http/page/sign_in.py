"""`/login` and `/logout`: a token of the service for a cookie, and away with it."""

from fastapi import APIRouter, Request, Response

from jobs.http.bodies import FORMS
from jobs.http.callers import require_own_page
from jobs.http.farm import FarmOf
from jobs.http.page.answers import SIGN_IN, PageRoute, frame, go_to, show
from jobs.http.page.rendering import render
from jobs.http.refusals import Refusal
from jobs.http.sessions import COOKIE, SESSION_S, seal

UNKNOWN = "This token is not known here."
MOST_FORM_BYTES, MOST_TOKEN_BYTES = 8192, 1000  # whoever sends it is still nobody

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/login")
async def ask(farm: FarmOf) -> Response:
    """Where there are no tokens, there is nothing to sign in to."""
    return go_to("/") if farm.tokens is None else _show("")


@router.post("/login", max_body_size=MOST_FORM_BYTES)
async def sign_in(request: Request, farm: FarmOf) -> Response:
    require_own_page(request)  # which else could sign somebody in as another
    typed = await _read_token(request)
    token = farm.tokens.find(typed) if farm.tokens is not None else None
    if token is None:
        return _show(UNKNOWN, 403)
    answer = go_to("/")
    is_secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, seal(token), max_age=SESSION_S, httponly=True, samesite="lax", secure=is_secure)
    return answer


async def _read_token(request: Request) -> str:
    """What somebody has typed. Raises Refusal for anything but a form."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in FORMS:
        raise Refusal(415, "unsupported_media_type", "a token is taken from the form of this page alone")
    async with request.form(max_files=0, max_fields=5, max_part_size=MOST_TOKEN_BYTES) as fields:
        return str(fields.get("token", "")).strip()


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    require_own_page(request)
    answer = go_to(SIGN_IN)
    answer.delete_cookie(COOKIE)
    return answer


def _show(error: str, status: int = 200) -> Response:
    return show(render("login.html", error=error, **frame()), status)
