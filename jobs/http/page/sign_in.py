"""`/login` and `/logout`: a token of the service for a cookie, and away with it."""

from fastapi import APIRouter, Request, Response

from jobs.http.bodies import read_body
from jobs.http.callers import require_own_page
from jobs.http.farm import FarmOf
from jobs.http.page.answers import SIGN_IN, PageRoute, frame, go_to, show
from jobs.http.page.rendering import render
from jobs.http.sessions import COOKIE, SESSION_S, seal

UNKNOWN = "This token is not known here."

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/login")
async def ask(farm: FarmOf) -> Response:
    """Where there are no tokens, there is nothing to sign in to."""
    return go_to("/") if farm.tokens is None else _show("")


@router.post("/login")
async def sign_in(request: Request, farm: FarmOf) -> Response:
    require_own_page(request)  # which else could sign somebody in as another
    typed = (await read_body(request)).fields.get("token", "")
    token = farm.tokens.find(str(typed).strip()) if farm.tokens is not None else None
    if token is None:
        return _show(UNKNOWN, 403)
    answer = go_to("/")
    is_secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, seal(token), max_age=SESSION_S, httponly=True, samesite="lax", secure=is_secure)
    return answer


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    require_own_page(request)
    answer = go_to(SIGN_IN)
    answer.delete_cookie(COOKIE)
    return answer


def _show(error: str, status: int = 200) -> Response:
    return show(render("login.html", error=error, **frame()), status)
