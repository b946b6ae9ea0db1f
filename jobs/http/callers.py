"""Who calls: by a bearer token, by a session of the page, or, where there are no tokens, from this very machine.

Without tokens the service listens on the loopback address alone, and still any page in a browser of this machine could
ask it: so the name it is called by has to be this machine's own. Where a browser adds the proof by itself, a cookie or
its mere place, what changes something has to come from our own page.
"""

import ipaddress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from jobs.http.farm import FarmOf
from jobs.http.refusals import Refusal
from jobs.http.sessions import COOKIE, open_sealed
from jobs.http.tokens import Token, Tokens
from jobs.submission import Owner

SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is."""

    name: str  # of the token; empty where there are none
    sees_all: bool

    @property
    def lists(self) -> str | None:
        """Whose jobs they see: None for everybody's."""
        return None if self.sees_all else self.name

    def owner(self, most_open: int) -> Owner | None:
        """What their jobs are noted as."""
        return Owner(self.name, most_open) if self.name else None


LOCAL = Caller("", sees_all=True)


async def identify(request: Request, farm: FarmOf) -> Caller:
    """The caller, unless they are over their limit. Raises Refusal."""
    caller = find_caller(request, farm.tokens)
    await farm.rates.count_request(caller.name)
    return caller


Call = Annotated[Caller, Depends(identify)]


def find_caller(request: Request, tokens: Tokens | None) -> Caller:
    """Raises Refusal for one who is nobody, or whose browser was led here by another page."""
    if tokens is None:
        _require_local(request)
        require_own_page(request)
        return LOCAL
    if header := request.headers.get("authorization"):
        scheme, _, text = header.partition(" ")
        token = tokens.find(text.strip()) if scheme.lower() == "bearer" else None
        return _caller(token)
    caller = _caller(open_sealed(request.cookies.get(COOKIE, ""), tokens))
    require_own_page(request)
    return caller


def _caller(token: Token | None) -> Caller:
    if token is None:
        raise Refusal(
            401,
            "invalid_api_key",
            "no token of this service came with the request: send `Authorization: Bearer TOKEN`",
            {"WWW-Authenticate": "Bearer"},
        )
    return Caller(token.name, token.sees_all)


def _require_local(request: Request) -> None:
    """Else a name that somebody lets lead to this machine would open the service to their page."""
    if not is_loopback(request.url.hostname or ""):
        raise Refusal(
            403,
            "wrong_host",
            "without tokens the service is called by localhost alone: give it H3_TOKENS_FILE to use another name",
        )


def is_loopback(host: str) -> bool:
    """Whether a host's name can be nobody but this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def require_own_page(request: Request) -> None:
    """Raises Refusal for what another site's page has made a browser send."""
    if request.method in SAFE:
        return
    origin = request.headers.get("origin")
    is_foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if is_foreign or request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "cross_site", "another site's page has sent this: use the service's own page, or a token")
