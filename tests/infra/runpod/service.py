"""A request's way to its answer: key, rate, fault, contract, call, and the contract again. Knows no socket."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from tests.infra.runpod.answers import JSON, Answer, Refusal, Unprocessable, problem
from tests.infra.runpod.calls import CALLS, Call
from tests.infra.runpod.clock import Clock, ManualClock
from tests.infra.runpod.document import Document, Operation, UndocumentedError, load_document
from tests.infra.runpod.faults import OUTSIDE_THE_DOCUMENT, Fault, Plan, Script
from tests.infra.runpod.rates import RateLimit
from tests.infra.runpod.world import Turn, World

KEY = "rpa_throw-away"


@dataclass(frozen=True, slots=True)
class Request:
    """As it came over the wire."""

    method: str
    target: str  # path?query
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> str:
        return urlsplit(self.target).query


@dataclass(frozen=True, slots=True)
class Seen:
    """One request in the server's log. The key itself isn't kept."""

    at: float
    method: str
    path: str
    query: str
    body: object  # parsed, if it was JSON
    headers: Mapping[str, str]  # without Authorization
    key: str  # "right", "wrong" or "missing"
    outside: tuple[str, ...]  # what about it the document doesn't have
    fault: Fault | None  # that it met
    status: int  # of the answer, though a fault may have kept it back


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back, and what happens to it on its way."""

    answer: Answer | None  # None: the connection is closed without one
    plan: Plan | None = None


@dataclass(slots=True)
class Service:
    """Its `lock` guards the world and the log."""

    document: Document
    is_later: bool
    world: World = field(default_factory=World)
    clock: Clock = field(default_factory=ManualClock)
    rate_limit: RateLimit = field(default_factory=RateLimit)
    script: Script = field(default_factory=Script)
    key: str = KEY
    log: list[Seen] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)  # where the server itself broke the contract: fails the test
    turns: list[Turn] = field(default_factory=list)  # not yet followed by machines
    lock: threading.RLock = field(default_factory=threading.RLock)

    def respond(self, request: Request) -> Reply:
        with self.lock:
            self.settle()
            return _Visit(self, request).reply()

    def settle(self) -> None:
        """Let what the time brought come over the pods."""
        with self.lock:
            self.turns += self.world.settle(self.clock.now())


def make_service(*, later: bool = False, **parts: object) -> Service:
    return Service(load_document(later=later), later, **parts)


class _Visit:
    """One request, from the wire to its answer."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request
        self._operation: Operation | None = None
        self._plan: Plan | None = None
        self._complaints: list[str] = []  # each is reason for a 422
        self._unknown: list[str] = []  # what RunPod ignores; it is noted, and changes nothing

    def reply(self) -> Reply:
        try:
            answer = self._answer()
        except Refusal as refusal:
            answer = refusal.answer()
        is_dropped = False
        if self._plan is not None:
            answer, is_dropped = self._plan.changed(answer), self._plan.drops_answer
        if self._key == "right":
            answer = replace(answer, headers=answer.headers | self._service.rate_limit.headers(self._now))
        answer = self._checked(answer)
        self._service.settle()  # what the call itself changed
        self._service.log.append(self._seen(answer.status))
        return Reply(None if is_dropped else answer, self._plan)

    def _answer(self) -> Answer:
        call = self._read_call()
        if self._key != "right":
            raise Refusal(401, f"{self._key} bearer token")
        self._service.rate_limit.count(self._now)
        self._plan = self._service.script.judge(call.operation.method, self._request.path, call.operation.template)
        if self._plan is not None:
            if (instead := self._plan.in_place_of_call(call.query)) is not None:
                return instead
            call = self._plan.bent(call)
        if self._complaints:
            raise Unprocessable(*self._complaints)
        return CALLS.get(call.operation.id, self._lack)(call)

    def _read_call(self) -> Call:
        """The request as the document reads it. What it doesn't have is noted first, whatever comes of it."""
        request, service, document = self._request, self._service, self._service.document
        try:
            self._operation, path = document.find(request.method, request.path)
        except UndocumentedError as error:
            self._unknown.append(str(error))
            raise Refusal(error.status, str(error)) from error
        query = document.read_query(self._operation, request.query)
        headers = document.read_headers(self._operation, request.headers)
        body, complaints = self._read_body()
        self._complaints += [*query.complaints, *headers.complaints, *complaints]
        self._unknown += [f"unknown parameter {name}" for name in query.unknown]
        return Call(
            self._operation,
            service.world,
            service.clock,
            service.is_later,
            path,
            query.values,
            headers.values,
            body,
            len(request.body),
        )

    def _read_body(self) -> tuple[object, list[str]]:
        raw = self._request.body
        if not self._operation.takes_body:
            return None, ["a body where the document has none"] if raw else []
        if self._request.headers.get("content-type", "").partition(";")[0] != JSON:
            return None, ["the body isn't application/json"]
        try:
            body = json.loads(raw)
        except ValueError:
            return None, ["the body isn't JSON"]
        return body, self._service.document.body_complaints(self._operation, body)

    def _lack(self, call: Call) -> Answer:
        self._service.breaches.append(f"this server doesn't have {call.operation.id}, which a test asked for")
        return problem(501, f"{call.operation.id} is not implemented")

    def _checked(self, answer: Answer) -> Answer:
        """The answer, or a loud one if the document doesn't have it."""
        if self._operation is None or (self._plan is not None and self._plan.fault in OUTSIDE_THE_DOCUMENT):
            return answer
        complaints = self._service.document.answer_complaints(
            self._operation, answer.status, answer.content_type, answer.as_read()
        )
        self._service.breaches += complaints
        return problem(500, "the test server broke the contract", tuple(complaints)) if complaints else answer

    @property
    def _now(self) -> float:
        return self._service.clock.now()

    @property
    def _key(self) -> str:
        sent = self._request.headers.get("authorization")
        if sent is None:
            return "missing"
        return "right" if sent == f"Bearer {self._service.key}" else "wrong"

    def _seen(self, status: int) -> Seen:
        request = self._request
        return Seen(
            self._now,
            request.method,
            request.path,
            request.query,
            _parsed(request.body),
            {name: value for name, value in request.headers.items() if name != "authorization"},
            self._key,
            (*self._complaints, *self._unknown),
            self._plan.fault if self._plan is not None else None,
            status,
        )


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body
