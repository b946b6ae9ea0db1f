"""Puts renders into queues: what is written for each, and what comes of it."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from urllib.parse import urlsplit
from uuid import uuid4

from redis import Redis

from jobs.errors import KeyConflict, RequestInvalid, TooManyJobs
from jobs.events import Queued
from jobs.lease import Argument, run_scripts
from jobs.operation import Operation
from jobs.queues import JOB_FUNCTION, NO_TIMEOUT, RECORD_TTL_S, QueueName
from jobs.request import GenerateRequest

_KEY_KEY = "h3:key:{digest}"
AT_ONCE = 100  # submits on one way: an event loop stands still while they are written
LONGEST_WEBHOOK = 2000
_QUEUE = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_NO_SERVER = Redis()  # RQ makes a job's record without one, and wants one named; this is never connected


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a job is: listed among theirs, and counted until it ends."""

    name: str
    most_open: int  # jobs that have not ended


@dataclass(frozen=True, slots=True)
class Submission:
    """One render to queue. With a key it may be repeated, and gives the same job. Raises RequestInvalid."""

    request: GenerateRequest
    queue: str = QueueName.DEFAULT
    idempotency_key: str | None = None
    webhook: str | None = None  # noted at its end, for a service to call
    owner: Owner | None = None

    def __post_init__(self) -> None:
        if not _QUEUE.fullmatch(self.queue):
            raise RequestInvalid(
                f"queue {self.queue[:100]!a} is no name of one: write up to 100 letters, digits, . _ -"
            )
        if self.idempotency_key == "":
            raise RequestInvalid("idempotency_key is empty, and so would be the next one: leave it out, or give a key")
        if self.webhook is not None:
            check_webhook(self.webhook)


class Outcome(StrEnum):
    """What became of a submission."""

    QUEUED = "queued"
    KNOWN = "known"  # its key has given this job before
    CONFLICT = "conflict"  # its key stands for another request, of this job
    FULL = "full"  # its owner has as many jobs as they may


@dataclass(frozen=True, slots=True)
class Submitted:
    job_id: str  # empty if there is none
    outcome: Outcome


def parse_submission(
    request: GenerateRequest | Mapping[str, object],
    queue: str,
    idempotency_key: str | None,
    webhook: str | None,
) -> Submission:
    """Raises RequestInvalid."""
    checked = request if isinstance(request, GenerateRequest) else GenerateRequest.parse(request)
    return Submission(checked, queue, idempotency_key, webhook)


def check_webhook(url: str) -> None:
    """Raises RequestInvalid for what nobody could call."""
    try:
        parts = urlsplit(url)
        is_callable = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0  # of one that is no port's number it is a ValueError
            and url.isprintable()
            and " " not in url
        )
    except ValueError:
        is_callable = False
    if not is_callable or len(url) > LONGEST_WEBHOOK:
        raise RequestInvalid(
            f"webhook {url[:100]!r} is no URL that can be called: write https://host/path, "
            f"of at most {LONGEST_WEBHOOK} letters"
        )


def submit_all(submissions: Sequence[Submission]) -> Operation[list[Submitted]]:
    """Queue them in their order. If it breaks off, those with a key can be submitted again."""
    submitted: list[Submitted] = []
    rest = iter(submissions)
    while some := list(islice(rest, AT_ONCE)):
        answers = yield from run_scripts([list(_write(submission)) for submission in some])
        submitted += [Submitted(job_id.decode(), Outcome(outcome.decode())) for outcome, job_id in answers]
    return submitted


def submit_one(submission: Submission) -> Operation[str]:
    """Queue it; the job's id. Raises KeyConflict and TooManyJobs."""
    [submitted] = yield from submit_all([submission])
    if submitted.outcome is Outcome.CONFLICT:
        raise KeyConflict(
            f"idempotency key {submission.idempotency_key!r} stands for another request, "
            f"job {submitted.job_id}: take a new key"
        )
    if submitted.outcome is Outcome.FULL and submission.owner is not None:
        raise too_many(submission.owner)
    return submitted.job_id


def too_many(owner: Owner) -> TooManyJobs:
    return TooManyJobs(
        f"{owner.name} has {owner.most_open} renders that have not ended, and may have no more: wait until one ends, "
        "or cancel one"
    )


def _write(submission: Submission) -> Iterator[Argument]:
    """The call of lease.lua, with the job's hash as RQ writes it."""
    from rq.job import Job  # here, because it is slow to import, and who only looks at jobs needs none of it
    from rq.serializers import JSONSerializer

    resolved = submission.request.resolve()
    job = Job.create(
        JOB_FUNCTION,
        kwargs={"request": resolved.model_dump()},
        connection=_NO_SERVER,
        id=uuid4().hex,
        timeout=NO_TIMEOUT,
        result_ttl=RECORD_TTL_S,
        failure_ttl=RECORD_TTL_S,
        description="render",  # RQ's default would put the prompt into logs
        serializer=JSONSerializer,
    )
    key = submission.idempotency_key
    yield from ("submit", job.id, submission.queue)
    yield "" if key is None else redis_key_of(key)
    yield digest_of(submission)
    yield from ("", 0) if submission.owner is None else (submission.owner.name, submission.owner.most_open)
    yield Queued(queue=submission.queue, request=resolved).model_dump_json()
    for pair in job.to_dict().items():
        yield from pair
    if submission.webhook is not None:
        yield from ("h3_webhook", submission.webhook)


def redis_key_of(idempotency_key: str) -> str:
    """Where the job that a key has given is noted: fields `job` and `digest`."""
    return _KEY_KEY.format(digest=_sha256(idempotency_key))


def digest_of(submission: Submission) -> str:
    """Of what a key stands for: the request as it was asked, so that a seed is drawn once, and its queue.

    A later version, whose requests have more fields, comes to the same, as long as no default changes.
    """
    return _sha256(submission.request.model_dump_json(exclude_defaults=True) + submission.queue)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
