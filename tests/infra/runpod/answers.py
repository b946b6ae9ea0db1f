"""What the server says: an answer, or a refusal in RunPod's form of a problem."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType

JSON, PROBLEM, EVENTS, HTML = "application/json", "application/problem+json", "text/event-stream", "text/html"
# RunPod's words. Nothing but the text tells this 400 from a broken rule.
NO_CAPACITY = (
    "There are no longer any instances available with the requested specifications. Please refresh and try again."
)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: object = None  # JSON values, or text if the content isn't JSON; None: no body
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    stream: Callable[[], Iterator[bytes]] | None = None  # in place of a body: pieces, b"" while there is nothing new

    @property
    def is_json(self) -> bool:
        """Else the body is text as it is sent."""
        return self.content_type in (JSON, PROBLEM) and not isinstance(self.body, str)

    def encoded(self) -> bytes:
        if self.body is None:
            return b""
        return json.dumps(self.body).encode() if self.is_json else self.body.encode()

    def as_read(self) -> object:
        """The body as a client parses it; None if there is none."""
        if self.stream is not None:
            return ""
        return json.loads(self.encoded()) if self.is_json and self.body is not None else self.body


class Refusal(Exception):
    """Raised where something is found wrong; the server answers with it."""

    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, status: int, detail: str, errors: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors

    def answer(self) -> Answer:
        return problem(self.status, self.detail, self.errors, self.headers)


class NoCapacity(Refusal):
    def __init__(self) -> None:
        super().__init__(400, NO_CAPACITY)


class NotFound(Refusal):
    def __init__(self, what: str) -> None:
        super().__init__(404, f"{what} not found")


class RuleBroken(Refusal):
    """A rule between fields, which the schema cannot say."""

    def __init__(self, detail: str) -> None:
        super().__init__(400, detail)


class Conflict(Refusal):
    def __init__(self, detail: str) -> None:
        super().__init__(409, detail)


class Unprocessable(Refusal):
    def __init__(self, *errors: str) -> None:
        super().__init__(422, "Request validation failed.", errors)


class RateLimited(Refusal):
    def __init__(self, window: str, retry_after_s: float) -> None:
        super().__init__(429, f"rate limit exceeded for the {window} window")
        self.headers = {"Retry-After": f"{retry_after_s:.0f}"}


def problem(
    status: int, detail: str, errors: tuple[str, ...] = (), headers: Mapping[str, str] = MappingProxyType({})
) -> Answer:
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Answer(status, body | ({"errors": list(errors)} if errors else {}), PROBLEM, dict(headers))
