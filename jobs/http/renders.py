"""What callers may do to renders: the same for programs and for the page. Nobody is shown another one's."""

from jobs.errors import CancelRefused, JobNotFound, KeyConflict, RequestInvalid
from jobs.http.callers import Caller
from jobs.http.farm import Farm
from jobs.http.webhooks.target import check_target
from jobs.http.wishes import Wanted
from jobs.job_calls import cancel_job
from jobs.lease import run_script
from jobs.listing import ListedJob, describe_jobs
from jobs.operation import run_async
from jobs.result import result_key
from jobs.store import Store
from jobs.submission import Owner, Submission, submit_one, too_many
from jobs.submitted import Page, drop_job, read_page

DELETE_TRIES = 3


async def submit_render(farm: Farm, caller: Caller, wanted: Wanted, idempotency_key: str | None = None) -> ListedJob:
    """Queue it. Raises RequestInvalid, PictureInvalid, KeyConflict, TooManyJobs and Refusal."""
    await farm.rates.count_submit(caller.name)
    if wanted.webhook is not None:
        _check_webhook(farm, wanted.webhook)
    owner = caller.owner(farm.settings.most_open)
    submission = Submission(
        wanted.request,
        queue=wanted.queue,
        idempotency_key=idempotency_key and _name_key(caller, idempotency_key),
        webhook=wanted.webhook,
        owner=owner,
    )
    if wanted.pictures and owner is not None:
        await _require_room(farm, owner)  # before they are in the store
    for picture in wanted.pictures:
        await farm.store.ask(picture.put)
    try:
        job_id = await run_async(submit_one(submission), farm.redis)
    except KeyConflict as exc:
        raise KeyConflict(f"Idempotency-Key {idempotency_key!a} stands for another request: take a new one") from exc
    return await find_render(farm, caller, job_id)


def _name_key(caller: Caller, key: str) -> str:
    """Another caller's key is another key, and what a command line is given has no zeros."""
    return f"\0{caller.name}\0{key}"


async def _require_room(farm: Farm, owner: Owner) -> None:
    if await run_async(run_script("count_open", owner.name, owner.most_open), farm.redis) >= owner.most_open:
        raise too_many(owner)


def _check_webhook(farm: Farm, url: str) -> None:
    if farm.webhooks is None:
        raise RequestInvalid(f"webhook {url[:100]!a} would be called by nobody: the service has no H3_WEBHOOK_SECRET")
    check_target(url, farm.webhooks.policy)


async def find_render(farm: Farm, caller: Caller, job_id: str) -> ListedJob:
    """Raises JobNotFound, also for another caller's."""
    if is_id(job_id):
        for job in await run_async(describe_jobs([job_id]), farm.redis):
            if caller.lists in (None, job.owner):
                return job
    raise JobNotFound(f"no video {job_id[:100]!a}: ids are told by POST /v1/videos; records stay 30 days")


def is_id(job_id: str) -> bool:
    """Whether Redis and the store may be asked for it: it comes from a URL."""
    return job_id.isascii() and job_id.isalnum() and len(job_id) <= 100


async def list_renders(
    farm: Farm, caller: Caller, *, after: str | None = None, limit: int, oldest_first: bool = False
) -> Page:
    """Raises JobNotFound if `after` is not of the caller's list."""
    return await run_async(read_page(caller.lists, after=after, limit=limit, oldest_first=oldest_first), farm.redis)


async def cancel_render(farm: Farm, caller: Caller, job_id: str) -> ListedJob:
    """End it: at once if it waits, else between two steps. Raises JobNotFound and CancelRefused."""
    await find_render(farm, caller, job_id)
    await run_async(cancel_job(job_id, None), farm.redis)
    return await find_render(farm, caller, job_id)


async def retry_render(farm: Farm, caller: Caller, job_id: str) -> ListedJob:
    """Give a failed or dead one its attempts back. Raises JobNotFound, CancelRefused, TooManyJobs and Refusal."""
    await farm.rates.count_submit(caller.name)
    job = await find_render(farm, caller, job_id)
    most_open = farm.settings.most_open
    match await run_async(run_script("retry_dead", job_id, most_open), farm.redis):
        case 0:
            raise CancelRefused(f"video {job_id} has not failed: there is nothing to try again")
        case 2:
            raise too_many(Owner(job.owner, most_open))
    return await find_render(farm, caller, job_id)


async def delete_render(farm: Farm, caller: Caller, job_id: str) -> None:
    """Show it to nobody again. What it has in the store goes too; of one that still runs, by `h3render gc`.

    Raises JobNotFound, and CancelRefused if somebody retries it again and again. Safe to repeat until it is done.
    """
    for _ in range(DELETE_TRIES):
        job = await find_render(farm, caller, job_id)
        if job.is_ended or await _cancel(farm, job_id):
            await farm.store.ask(lambda store: _erase(store, job_id))
        if await run_async(drop_job(job_id), farm.redis) != "queued":  # somebody has retried it meanwhile
            return
    raise CancelRefused(f"video {job_id} is queued again whenever it is deleted: try again")


async def _cancel(farm: Farm, job_id: str) -> bool:
    """Whether nobody is left to write anything of it."""
    try:
        return await run_async(cancel_job(job_id, None), farm.redis)
    except CancelRefused:  # it has ended meanwhile
        return True


def _erase(store: Store, job_id: str) -> None:
    """The commit marker first: who sees that sees a whole result."""
    store.delete(result_key(job_id))
    for key in list(store.list(f"{job_id}/")):
        store.delete(key)
