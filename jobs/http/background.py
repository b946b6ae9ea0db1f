"""What a service does beside its answers: calls webhooks, and takes jobs back whose worker is gone."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog
from redis.exceptions import RedisError

from jobs.connection import connect
from jobs.http.farm import Farm
from jobs.http.settings import ServeSettings
from jobs.http.video import tell_video
from jobs.http.webhooks.delivery import deliver_for_ever
from jobs.http.webhooks.settings import WebhookSettings
from jobs.lease import Leases, Reaped
from jobs.listing import describe_jobs
from jobs.operation import run_async
from jobs.reaper import Reaper

AGAIN_S = 5.0  # after an error that nobody foresaw
ANSWER_TIMEOUT_S = 4.0  # of Redis, for which the end of the service may have to wait

log = structlog.get_logger()


@asynccontextmanager
async def calling_webhooks(farm: Farm) -> AsyncIterator[Farm]:
    """Meanwhile, if there is a secret to sign with."""
    if farm.webhooks is None:
        log.info("webhooks are not called", remedy="set H3_WEBHOOK_SECRET")
        yield farm
        return
    calling = asyncio.create_task(_call_webhooks(farm, farm.webhooks))
    try:
        yield farm
    finally:
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)


async def _call_webhooks(farm: Farm, settings: WebhookSettings) -> None:
    async def describe(job_id: str) -> dict[str, object] | None:
        [*jobs] = await run_async(describe_jobs([job_id]), farm.redis)
        return tell_video(jobs[0]).model_dump(mode="json") if jobs else None

    while True:
        try:
            await deliver_for_ever(farm.redis, settings, describe)
        except Exception:  # the answers go on, and so shall this
            log.exception("webhooks stopped, beginning again")
            await asyncio.sleep(AGAIN_S)


@asynccontextmanager
async def reaping(settings: ServeSettings) -> AsyncIterator[None]:
    """Take jobs back in a thread of its own, as any number of workers and services may."""
    over = threading.Event()
    with connect(settings, answer_timeout_s=ANSWER_TIMEOUT_S, retries=0) as redis:
        leases = Leases(redis, lease_s=settings.lease_s)
        # A daemon: the service's end does not wait for long for a Redis that hangs.
        thread = threading.Thread(target=_reap, args=(leases, over), name="reaper", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            await asyncio.to_thread(thread.join, ANSWER_TIMEOUT_S)


def _reap(leases: Leases, over: threading.Event) -> None:
    reaper = Reaper(leases, over.wait)
    while not over.is_set():
        with suppress(RedisError):  # the next look may be better
            for reaped in reaper.look_for_ever():
                if over.is_set():
                    return
                _tell(reaped)
        over.wait(leases.beat_s)


def _tell(reaped: Reaped) -> None:
    for place, job_ids in (("queued", reaped.queued), ("dead", reaped.dead)):
        for job_id in job_ids:
            log.info("taken back", job_id=job_id, place=place)
