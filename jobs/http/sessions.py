"""The cookie of a person who has signed in on the page: whose it is, until when, and a proof of the token.

Nothing is stored: a token that is taken out of the file ends its sessions.
"""

import base64
import hashlib
import hmac
import time

from jobs.http.tokens import Token, Tokens

COOKIE = "h3render"
SESSION_S = 30 * 24 * 3600


def seal(token: Token, now: float | None = None) -> str:
    """The cookie's value."""
    until = int((time.time() if now is None else now) + SESSION_S)
    return f"{token.name}:{until}:{_sign(token, until)}"


def open_sealed(value: str, tokens: Tokens, now: float | None = None) -> Token | None:
    """Whose cookie it is; None for one that is over, or that we have not made."""
    name, _, rest = value.rpartition(":")[0].rpartition(":")
    proof = value.rpartition(":")[2]
    if not (rest.isascii() and rest.isdecimal() and len(rest) <= 12):
        return None
    until = int(rest)
    if until <= (time.time() if now is None else now):
        return None
    return next((token for token in tokens.named(name) if _is_ours(token, until, proof)), None)


def _is_ours(token: Token, until: int, proof: str) -> bool:
    return hmac.compare_digest(_sign(token, until).encode(), proof.encode("utf-8", "surrogateescape"))


def _sign(token: Token, until: int) -> str:
    """By what only the service and the token's bearer know."""
    proof = hmac.digest(token.digest, f"h3render session {token.name} {until}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(proof).decode().rstrip("=")
