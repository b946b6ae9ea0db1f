"""What goes wrong, as data: which request, how, how often.

A fault takes one of four places: in place of the call; in place of its answer; in the answer; on the way back.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import count

from tests.infra.runpod.answers import HTML, NO_CAPACITY, Answer, RateLimited, problem
from tests.infra.runpod.calls import Call

DEPTH = 100_000
HUGE_BYTES = 9 << 20


class Fault(Enum):
    # In place of the call: nothing is done.
    SERVER_ERROR = auto()  # 500
    HTML_ERROR = auto()  # 502, as of a proxy
    NO_CAPACITY = auto()  # 400
    UNAUTHORIZED = auto()  # 401
    NO_BALANCE = auto()  # 402
    FORBIDDEN = auto()  # 403
    CONFLICT = auto()  # 409
    RETIRED = auto()  # 410
    RATE_LIMITED = auto()  # 429 with Retry-After: `seconds`
    REDIRECT = auto()  # 307 to another host, `target`
    CLOSE = auto()  # the request is read, the connection closed
    # In place of the answer: it is done.
    SERVER_ERROR_AFTER_EFFECT = auto()  # 500
    HTML_ERROR_AFTER_EFFECT = auto()  # 502
    CLOSE_AFTER_EFFECT = auto()  # no answer
    # In the answer.
    DUPLICATE_ID = auto()  # a list has its first pod twice
    REPEATED_CURSOR = auto()  # a list's next page is always the same one
    ENDLESS_CURSOR = auto()  # a list has ever more pages, with nothing on them
    EDITED = auto()  # `edit` changes the JSON, into anything
    NOT_JSON = auto()  # 2xx with a body that cannot be read
    HUGE = auto()  # a body of 9 MiB
    DEEP = auto()  # lists in lists
    STILL_LISTED = auto()  # a deleted pod is shown as before for `seconds`
    # On the way back.
    HALF_BODY = auto()  # then the connection closes
    SLOW_DRIP = auto()  # `seconds` between one byte and the next
    STALL = auto()  # `seconds` of silence, then all is well


REFUSALS = {
    Fault.SERVER_ERROR: (500, "internal error"),
    Fault.NO_CAPACITY: (400, NO_CAPACITY),
    Fault.UNAUTHORIZED: (401, "invalid bearer token"),
    Fault.NO_BALANCE: (402, "insufficient balance"),
    Fault.FORBIDDEN: (403, "access denied"),
    Fault.CONFLICT: (409, "not valid for the current status"),
    Fault.RETIRED: (410, "this API version is retired"),
    Fault.CLOSE: (500, "closed"),
}
OUTSIDE_THE_DOCUMENT = frozenset(
    {Fault.HTML_ERROR, Fault.HTML_ERROR_AFTER_EFFECT, Fault.REDIRECT, Fault.EDITED}
    | {Fault.NOT_JSON, Fault.HUGE, Fault.DEEP}
)


@dataclass(slots=True)
class Plan:
    """A fault that waits for its requests."""

    method: str
    path: str  # as sent, or a path of the document with its braces
    fault: Fault
    times: float
    skip: int  # requests that pass unharmed before
    seconds: float
    target: str
    edit: Callable[[object], object] | None
    _cursors: count = field(default_factory=lambda: count(1))

    def fits(self, method: str, path: str, template: str) -> bool:
        return self.times > 0 and self.method == method and self.path in (path, template)

    def in_place_of_call(self, query: dict) -> Answer | None:
        """None: the call is made."""
        match self.fault:
            case Fault.RATE_LIMITED:
                return RateLimited("minute", self.seconds).answer()
            case Fault.HTML_ERROR:
                return _html_error()
            case Fault.REDIRECT:
                return Answer(307, "", HTML, {"Location": self.target})
            case Fault.ENDLESS_CURSOR if "cursor" in query:
                return Answer(200, {"pods": [], "pagination": self._next_page()})
            case fault if fault in REFUSALS:
                return problem(*REFUSALS[fault])
        return None

    @property
    def drops_answer(self) -> bool:
        return self.fault in (Fault.CLOSE, Fault.CLOSE_AFTER_EFFECT)

    def bent(self, call: Call) -> Call:
        return replace(call, stale_s=self.seconds) if self.fault is Fault.STILL_LISTED else call

    def changed(self, answer: Answer) -> Answer:
        """What becomes of the answer of a call that was made. A refused call keeps its refusal."""
        if answer.status >= 400:
            return answer
        match self.fault:
            case Fault.SERVER_ERROR_AFTER_EFFECT:
                return problem(500, "internal error")
            case Fault.HTML_ERROR_AFTER_EFFECT:
                return _html_error()
            case Fault.NOT_JSON:
                return replace(answer, body="<!doctype html>not JSON")
            case Fault.HUGE:
                return replace(answer, body="[" + " " * HUGE_BYTES + "]")
            case Fault.DEEP:
                return replace(answer, body="[" * DEPTH + "]" * DEPTH)
            case Fault.EDITED:
                return replace(answer, body=self.edit(answer.as_read()))
            case Fault.DUPLICATE_ID | Fault.REPEATED_CURSOR | Fault.ENDLESS_CURSOR:
                return replace(answer, body=self._changed_list(answer.body))
        return answer

    def _changed_list(self, body: dict) -> dict:
        match self.fault:
            case Fault.DUPLICATE_ID:
                return body | {"pods": body["pods"] + body["pods"][:1]}
            case Fault.REPEATED_CURSOR:
                # Above all numbers: the first page again.
                return body | {"pagination": {"nextCursor": f"pods-{10**9}", "hasNextPage": True}}
            case _:
                return body | {"pagination": self._next_page()}

    def _next_page(self) -> dict:
        return {"nextCursor": f"endless-{next(self._cursors)}", "hasNextPage": True}


class Script:
    """The faults to come: the first that fits a request and isn't used up decides it."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []

    def add(
        self,
        method: str,
        path: str,
        fault: Fault,
        *,
        times: float = 1,
        skip: int = 0,
        seconds: float = 1.0,
        target: str = "",
        edit: Callable[[object], object] | None = None,
    ) -> None:
        """For `times` requests (`math.inf`: all), after `skip` that pass. `seconds`: see the fault."""
        if (edit is not None) != (fault is Fault.EDITED):
            raise ValueError("`edit` goes with Fault.EDITED")
        self._plans.append(Plan(method, path, fault, times, skip, seconds, target, edit))

    def heal(self) -> None:
        """Nothing goes wrong from now on."""
        self._plans.clear()

    def judge(self, method: str, path: str, template: str) -> Plan | None:
        """What becomes of this request."""
        for plan in self._plans:
            if plan.fits(method, path, template):
                if plan.skip > 0:
                    plan.skip -= 1
                    return None
                plan.times -= 1
                return plan
        return None

    def unused(self) -> list[Plan]:
        """Those that still wait for a request: a test that scripted them may not have tested them."""
        return [plan for plan in self._plans if 0 < plan.times < math.inf]


def _html_error() -> Answer:
    return Answer(502, "<html><body><h1>502 Bad Gateway</h1></body></html>", HTML)
