"""Which error an HTTP status is, and what RunPod says about it in words."""

from pydantic import BaseModel, ConfigDict, ValidationError

from infra.errors import (
    AccessDenied,
    AnswerInvalid,
    ApiError,
    BalanceTooLow,
    ContractBroken,
    KeyRefused,
    NotFound,
    RateLimited,
    RefusedByRunPod,
    RequestRejected,
    ServerFailed,
    VersionRetired,
)
from jobs.plain_text import plain

MOST_LETTERS = 600  # of what is told

KINDS: dict[int, type[ApiError]] = {
    400: RequestRejected,
    401: KeyRefused,
    402: BalanceTooLow,
    403: AccessDenied,
    404: NotFound,
    410: VersionRetired,
    422: ContractBroken,
    429: RateLimited,
}
REMEDIES: dict[type[ApiError], str] = {
    KeyRefused: "make a new key in RunPod's console and set RUNPOD_API_KEY",
    BalanceTooLow: "add credit in RunPod's console: an hour of the pod is needed",
    NotFound: "it is gone, or another account's: `h3render pods list` tells what there is",
    AccessDenied: "the key needs the right to write pods, and to read the rest",
    VersionRetired: "this version of the API has ended: install a newer h3render",
    ContractBroken: "this is a fault of h3render, or a flag that RunPod does not take",
}


class Problem(BaseModel):
    """application/problem+json, of which proxies on the way know nothing."""

    model_config = ConfigDict(extra="ignore")

    title: str = ""
    detail: str = ""
    errors: tuple[str, ...] = ()


def judge_status(status: int) -> type[ApiError]:
    """The class for a status that is no success: redirects are not followed, and are no answer."""
    if status in KINDS:
        return KINDS[status]
    if status >= 500:
        return ServerFailed
    return RefusedByRunPod if 400 <= status < 500 else AnswerInvalid


def describe_refusal(status: int, body: bytes) -> str:
    """The status, RunPod's words, and a remedy."""
    kind = judge_status(status)
    parts = [f"RunPod answers {status}", _read_problem(body), REMEDIES.get(kind, "")]
    return ": ".join(part for part in parts if part)


def _read_problem(body: bytes) -> str:
    try:
        problem = Problem.model_validate_json(body)
    except ValidationError:
        return ""  # a proxy's page
    # For one field that is missing the validator may call the others unexpected.
    errors = sorted(problem.errors, key=lambda error: "missing" not in error)
    return plain("; ".join([problem.detail or problem.title, *errors]))[:MOST_LETTERS].rstrip(".")
