"""The jobs that were submitted, a page at a time: those of all, or of one owner. lease.lua keeps the lists."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.errors import JobNotFound
from jobs.job_status import read_text
from jobs.lease import run_script
from jobs.listing import ListedJob, describe_jobs
from jobs.operation import Operation

SUBMITTED_KEY = "h3:submitted"


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
    key = SUBMITTED_KEY if owner is None else f"{SUBMITTED_KEY}:{owner}"
    first = 0 if after is None else (yield from _find_rank(key, after, oldest_first=oldest_first)) + 1
    found: list[ListedJob] = []
    wanted = limit + 1
    while len(found) < wanted:
        ids = yield from _read_ids(key, first, wanted, oldest_first=oldest_first)
        found += yield from describe_jobs(ids)
        first += len(ids)
        if len(ids) < wanted:
            break
    return Page(tuple(found[:limit]), has_more=len(found) > limit)


def _find_rank(key: str, job_id: str, *, oldest_first: bool) -> Operation[int]:
    rank = yield lambda redis: (redis.zrank if oldest_first else redis.zrevrank)(key, job_id)
    if rank is None:
        raise JobNotFound(f"after {job_id[:100]!a} nothing can be listed: no job of this list has that id")
    return int(rank)


def _read_ids(key: str, first: int, size: int, *, oldest_first: bool) -> Operation[Sequence[str]]:
    last = first + size - 1
    ids = yield lambda redis: (redis.zrange if oldest_first else redis.zrevrange)(key, first, last)
    return [read_text(job_id) for job_id in ids]


def drop_job(job_id: str) -> Operation[str]:
    """Let nobody be shown it again: `dropped` if it had ended, `hidden` while it runs, `queued` if it waits.

    One that waits is left alone: cancel it first. What it has in the store stays.
    """
    return read_text((yield from run_script("drop", job_id)))
