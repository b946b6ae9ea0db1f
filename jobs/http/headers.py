"""Headers of every answer: what a browser must not do with it."""

from collections.abc import MutableMapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'self'; media-src 'self' blob:; img-src 'self' data:; worker-src 'self' blob:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# The pages of a library, which begin with a line of script.
_DOCS_POLICY = "default-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; frame-ancestors 'none'"
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class SafeHeaders:
    """Adds them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        policy = _DOCS_POLICY if scope["path"].startswith("/docs") else _POLICY

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add(message, policy)
            await send(message)

        return await self._app(scope, receive, add)


def _add(message: MutableMapping[str, object], policy: str) -> None:
    headers = MutableHeaders(scope=message)
    headers.update({**_SAFE, "Content-Security-Policy": policy})
