"""The jobs that were submitted, a page at a time: those of all, or of one owner. lease.lua keeps the lists."""

from dataclasses import dataclass

from jobs.errors import JobNotFound
from jobs.job_status import read_text
from jobs.lease import run_script
from jobs.listing import ListedJob, describe_jobs
from jobs.operation import Call, Operation

SUBMITTED_KEY, OPEN_KEY = "h3:submitted", "h3:open:{owner}"  # of an owner: that have not ended

MANY = 100


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    jobs: tuple[ListedJob, ...]
    has_more: bool


def read_page(
    owner: str | None, *, after: str | None = None, limit: int, oldest_first: bool = False
) -> Operation[Page]:
    """What follows a job, or the first of all; jobs whose record is gone are passed over.

    owner  None: everybody's

    Raises JobNotFound if `after` is not in the list, or no longer.
    """
    key = submitted_key(owner)
    bound = None if after is None else (yield from _find_score(key, after))
    found: list[ListedJob] = []
    wanted = size = limit + 1
    while len(found) < wanted:
        entries = yield ask_entries(key, bound, size, oldest_first=oldest_first)
        found += yield from describe_jobs([read_text(job_id) for job_id, _ in entries])
        if len(entries) < size:
            break
        bound, size = entries[-1][1], max(wanted, MANY)  # some records are gone, and so may be many
    return Page(tuple(found[:limit]), has_more=len(found) > limit)


def _find_score(key: str, job_id: str) -> Operation[float]:
    score = yield lambda redis: redis.zscore(key, job_id)
    if score is None:
        raise JobNotFound(f"after {job_id[:100]!a} nothing can be listed: no job of this list has that id")
    return float(score)


def submitted_key(owner: str | None) -> str:
    """Of the list of one owner, or of everybody's."""
    return SUBMITTED_KEY if owner is None else f"{SUBMITTED_KEY}:{owner}"


def ask_entries(key: str, bound: float | None, size: int, *, oldest_first: bool = False) -> Call:
    """Ids and scores beyond one, or from the list's end: no two jobs have the same, and new ones move no other."""
    beyond = None if bound is None else f"({bound:.0f}"
    if oldest_first:
        return lambda redis: redis.zrangebyscore(key, beyond or "-inf", "+inf", 0, size, withscores=True)
    return lambda redis: redis.zrevrangebyscore(key, beyond or "+inf", "-inf", 0, size, withscores=True)


def drop_job(job_id: str) -> Operation[str]:
    """Let nobody be shown it again: `dropped` if it had ended, `hidden` while it runs, `queued` if it waits.

    One that waits is left alone: cancel it first. What it has in the store stays.
    """
    return read_text((yield from run_script("drop", job_id)))
