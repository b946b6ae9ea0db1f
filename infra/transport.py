"""One HTTP call to RunPod and back: the key, time-outs, the size of an answer, and repeats where they do no harm.

It knows no path of the API. The key is put into the one header and nowhere else, and taken out of every text that an
error shows. Redirects are not followed, and neither proxies nor .netrc of the environment are heeded.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import httpx2
import structlog
from pydantic import SecretStr

from infra.clock import Clock
from infra.errors import AnswerInvalid, ApiError, ConnectionLost, NotReached
from infra.rates import find_pause_s, read_retry_after
from infra.refusals import describe_refusal, judge_status

MOST_BYTES = 8 << 20  # of an answer
TRIES = 5
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0
LONGEST_RETRY_AFTER_S = 120.0

Params = Mapping[str, str | int | bool]
Result = TypeVar("Result")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a call may take."""

    connect_s: float = 10.0
    read_s: float = 30.0  # between two parts of an answer
    create_s: float = 90.0  # of the one POST, all of it
    deadline_s: float = 180.0  # of all tries of another call, pauses and all


class Transport:
    """Calls with the key, each on a connection of its own: a kept one may be closed just when a create is sent."""

    def __init__(self, origin: str, key: SecretStr, clock: Clock, limits: Limits) -> None:
        self._key = key
        self._clock = clock
        self._limits = limits
        self._pause_s = 0.0  # before the next call, by what the last answer told of rates
        self._http = httpx2.Client(
            base_url=origin,
            trust_env=False,
            follow_redirects=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
            headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "h3render"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str, params: Params | None = None) -> bytes:
        """Repeated if need be. Raises ApiError."""
        return self._repeat(path, lambda end: self._call(self._build("GET", path, params=params), end))

    def delete(self, path: str) -> None:
        """Likewise: a thing that is gone is not deleted twice."""
        self._repeat(path, lambda end: self._call(self._build("DELETE", path), end))

    def post_once(self, path: str, body: bytes) -> bytes:
        """Sent once, whatever comes of it; a success is 201. Raises ApiError: its class tells if it may have worked."""
        self._be_calm()
        request = self._build("POST", path, body=body)
        return self._call(request, self._clock.monotonic() + self._limits.create_s, success=201)

    @contextmanager
    def stream(self, path: str, params: Params, read_s: float) -> Iterator[Iterator[bytes]]:
        """An answer that does not end by itself. Raises ApiError, while it is read too."""
        request = self._build("GET", path, params=params, accept="text/event-stream")
        with self._sending(request, read_s) as response:
            if response.status_code != 200:
                self._read(response, self._clock.monotonic() + read_s)
                raise AnswerInvalid(f"{_say(request)}: RunPod answers {response.status_code} where 200 is due")
            yield response.iter_bytes()

    def conceal(self, text: str) -> str:
        """A text without the key."""
        return text.replace(self._key.get_secret_value(), "***")

    def _build(
        self, method: str, path: str, *, params: Params | None = None, body: bytes | None = None, accept: str = ""
    ) -> httpx2.Request:
        headers = {"Authorization": f"Bearer {self._key.get_secret_value()}"}
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        headers |= {"Accept": accept} if accept else {}
        return self._http.build_request(method, path, params=_to_query(params), content=body, headers=headers)

    def _call(self, request: httpx2.Request, end: float, *, success: int | None = None) -> bytes:
        read_s = self._limits.read_s if success is None else self._limits.create_s
        left_s = end - self._clock.monotonic()
        if left_s <= 0:
            raise ConnectionLost(f"{_say(request)}: no answer in time")
        with self._sending(request, min(read_s, left_s)) as response:
            body = self._read(response, end)
        if success is not None and response.status_code != success:
            raise AnswerInvalid(f"{_say(request)}: RunPod answers {response.status_code} where {success} is due")
        return body

    @contextmanager
    def _sending(self, request: httpx2.Request, read_s: float) -> Iterator[httpx2.Response]:
        request.extensions["timeout"] = httpx2.Timeout(read_s, connect=min(self._limits.connect_s, read_s)).as_dict()
        with self._our_errors(request):
            response = self._http.send(request, stream=True)
            try:
                self._pause_s = find_pause_s(response.headers)
                yield response
            finally:
                response.close()

    @contextmanager
    def _our_errors(self, request: httpx2.Request) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol) as exc:
            raise NotReached(self._describe(request, "no connection", exc)) from exc
        except httpx2.HTTPError as exc:
            raise ConnectionLost(self._describe(request, "no whole answer", exc)) from exc

    def _describe(self, request: httpx2.Request, what: str, exc: Exception) -> str:
        return self.conceal(f"{_say(request)} at {request.url.host}: {what} ({type(exc).__name__}: {exc})")

    def _read(self, response: httpx2.Response, end: float) -> bytes:
        """The whole answer of a success; else the error that it is."""
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MOST_BYTES:
                raise AnswerInvalid(f"{_say(response.request)}: RunPod's answer has more than {MOST_BYTES >> 20} MiB")
            if self._clock.monotonic() > end:
                raise ConnectionLost(f"{_say(response.request)}: the answer did not end in time")
        if response.is_success:
            return bytes(body)
        raise self._refusal(response, bytes(body))

    def _refusal(self, response: httpx2.Response, body: bytes) -> ApiError:
        number = response.headers.get("x-request-id", "")
        text = f"{_say(response.request)}: {describe_refusal(response.status_code, body)}"
        text += f" (request {number[:80]!a})" if number else ""
        kind = judge_status(response.status_code)
        return kind(self.conceal(text), retry_after_s=read_retry_after(response.headers))

    # --- again

    def _repeat(self, path: str, call: Callable[[float], Result]) -> Result:
        end = self._clock.monotonic() + self._limits.deadline_s
        for tried in itertools.count(1):
            self._be_calm()
            try:
                return call(end)
            except ApiError as exc:
                pause_s = choose_pause_s(exc, tried, self._clock.chance())
                if not exc.may_repeat or tried == TRIES or self._clock.monotonic() + pause_s >= end:
                    raise
                log.warning("RunPod is asked again", path=path, tried=tried, pause_s=round(pause_s, 2), why=str(exc))
                self._clock.sleep(pause_s)
        raise AssertionError("it is left by an answer or an error")

    def _be_calm(self) -> None:
        pause_s, self._pause_s = self._pause_s, 0.0
        if pause_s:
            log.info("few calls are left", pause_s=round(pause_s, 2))
            self._clock.sleep(pause_s)


def choose_pause_s(error: ApiError, tried: int, chance: float) -> float:
    """Seconds to wait after so many tries: what RunPod asks for and a little, else a random part of a growing span."""
    if error.retry_after_s is not None:
        return min(error.retry_after_s, LONGEST_RETRY_AFTER_S) + chance
    span_s = min(SHORTEST_PAUSE_S * 2.0 ** (tried - 1), LONGEST_PAUSE_S)
    return chance * span_s


def quote_id(text: str) -> str:
    """An id as a part of a path: those of GPUs have spaces."""
    return quote(text, safe="")


def _to_query(params: Params | None) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (params or {}).items()
    }


def _say(request: httpx2.Request) -> str:
    return f"{request.method} {request.url.path}"
