"""How the page answers: HTML, also where something is refused; and a fragment only if it has changed."""

import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from markupsafe import Markup

from jobs.errors import JobsError
from jobs.http.page.rendering import render
from jobs.http.refusals import Refusal, judge

SIGN_IN = "/login"
AWAY = "The farm does not answer at the moment. Renders go on; this page does too, as soon as it answers."
_CHANGES = {"Cache-Control": "private, no-store"}  # what a caller may see is for nobody else
_TITLES = {403: "Not from here", 404: "Not here", 409: "Not any more", 413: "Too large", 429: "Too much at once"}


@dataclass(frozen=True, slots=True)
class Note:
    """A line above the page."""

    text: str
    is_bad: bool = False


class PageRoute(APIRoute):
    """Tells errors to a person: who is not signed in is led to do so, all else is a page with the reason."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_person(request: Request) -> Response:
            try:
                return await answer(request)
            except Refusal as refusal:
                return _tell(refusal)
            except JobsError as error:
                return _tell(judge(error))

        return answer_person


def _tell(refusal: Refusal) -> Response:
    if refusal.status == 401:
        return RedirectResponse(SIGN_IN, 303)
    title, text = _TITLES.get(refusal.status, "This did not work"), refusal.message
    if refusal.status == 503:
        title, text = "Away", AWAY
    return show(render("message.html", title=title, text=text, **frame()), refusal.status, refusal.headers)


def frame(
    *, caller_name: str = "", note: Note | None = None, trouble: str = "", reload_s: int = 0
) -> dict[str, object]:
    """What every page has around it.

    reload_s  after so long it is loaded again where scripts do not run; 0: never
    """
    return {"caller_name": caller_name, "note": note, "trouble": trouble, "reload_s": reload_s}


def show(html: str, status: int = 200, headers: Any = None) -> HTMLResponse:
    return HTMLResponse(html, status, headers=_CHANGES | dict(headers or {}))


def show_live(html: Markup, request: Request) -> Response:
    """The part that changes, unless the browser has it as it is."""
    headers = _CHANGES | {"ETag": tag_of(html)}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(html, headers=headers)


def tag_of(html: Markup) -> str:
    return f'"{hashlib.sha256(html.encode()).hexdigest()[:32]}"'


def go_to(path: str) -> RedirectResponse:
    """After something was done: loading the page again does not do it again."""
    return RedirectResponse(path, 303)
