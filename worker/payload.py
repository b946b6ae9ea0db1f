"""Reads what a queued job carries. Whoever can write to Redis can have written it: nothing is run, nothing is big."""

import json
import re
import zlib
from functools import lru_cache

from jobs.errors import RequestInvalid, RequestTooNew
from jobs.lease import MOST_REASON_LETTERS, Waiting, printable
from jobs.queues import JOB_FUNCTION
from jobs.request import INPUTS, ResolvedRequest, parse_resolved
from worker.errors import RequestRefused

MOST_BYTES = 1 << 20  # of a call, decompressed; a prompt's 20,000 letters have a quarter of it at most
MOST_FIELDS = 100  # of a request; for each wrong one the nearest name is looked for
JOB_ID = re.compile(rf"(?!{INPUTS}$)[A-Za-z0-9_-]{{1,200}}")  # RQ's rule, but that ids are folders in the store
UNREADABLE = "job carries no readable call: submit it with `h3render submit` or jobs.Client"


def read_waiting(waiting: Waiting) -> ResolvedRequest:
    """The request of a queued job. Raises RequestRefused, and RequestTooNew for what newer workers can read."""
    if waiting.problem:
        raise RequestRefused(waiting.problem)
    if not JOB_ID.fullmatch(waiting.job_id):
        raise RequestRefused(f"the job id {waiting.job_id!a} is {INPUTS}, or not made of letters, digits, - and _")
    return read_request(waiting.call)


@lru_cache(maxsize=10_000)  # jobs that this worker cannot serve are looked at again and again
def read_request(call: bytes) -> ResolvedRequest:
    """The request in a call of our one function, as RQ writes it.

    Raises RequestRefused for anything else, and RequestTooNew.
    """
    try:
        function, instance, arguments, keywords = json.loads(_inflate(call))
        request = keywords.get("request")
    except (ValueError, TypeError, AttributeError, RecursionError, zlib.error) as exc:
        raise RequestRefused(UNREADABLE) from exc
    if function != JOB_FUNCTION:
        raise RequestRefused(f"job calls {str(function)[:200]!a}; this worker runs {JOB_FUNCTION} only")
    if instance or arguments or len(keywords) != 1:
        raise RequestRefused("the call carries something besides a request")
    if isinstance(request, dict) and len(request) > MOST_FIELDS:
        raise RequestRefused(f"the request has {len(request)} fields")
    try:
        return parse_resolved(request)
    except RequestTooNew:
        raise
    except RequestInvalid as exc:
        raise RequestRefused(printable(str(exc))[:MOST_REASON_LETTERS]) from exc


def _inflate(call: bytes) -> bytes:
    inflater = zlib.decompressobj()
    text = inflater.decompress(call, MOST_BYTES)
    if not inflater.eof:
        raise ValueError(f"more than {MOST_BYTES} bytes, or cut off")
    return text
