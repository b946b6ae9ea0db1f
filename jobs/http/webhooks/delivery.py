"""Delivers the notices of ended jobs, in the background of a service: `deliver_for_ever` is all that it needs.

Each notice is delivered at least once, whatever dies: it is due again if nobody has said within a lease what became of
it. Nothing here is on the way of a job.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

import structlog
from redis.asyncio import Redis

from jobs.errors import JobsError, RedisUnavailable
from jobs.http.webhooks.due import Delivery, DueNotices
from jobs.http.webhooks.notice import Describe, Described, make_body, webhook_id
from jobs.http.webhooks.sending import Message, send
from jobs.http.webhooks.settings import WebhookSettings
from jobs.http.webhooks.signature import sign
from jobs.http.webhooks.verdict import Again, Delivered, GivenUp, Verdict, judge

LEASE_S = 60.0
GRACE_S = 5.0
MOST_AT_ONCE = 16
IDLE_S = 5.0  # at the latest then one looks, for what another service has left
AWAY_S = 1.0  # between two looks for a Redis that does not answer
CANCEL_AGAIN_S = 0.05
TROUBLE_S = 15.0  # until the next try after one that failed through no fault of the receiver

log = structlog.get_logger()


async def deliver_for_ever(
    redis: Redis,
    settings: WebhookSettings,
    describe: Describe,
    *,
    lease_s: float = LEASE_S,
    grace_s: float = GRACE_S,
) -> None:
    """Deliver until canceled; then what is on its way gets a short grace, and the rest stays due for others.

    redis    whose answers are bytes, and which waits for longer than a second
    lease_s  after which another service takes over what one that has died was at; the same for all services
    """
    courier = Courier(DueNotices(redis, lease_s), settings, describe, lease_s)
    watching = asyncio.create_task(courier.watch())
    try:
        await courier.work()
    finally:
        await courier.stop(watching, grace_s)


class Courier:
    """Delivers what it claims, several at once."""

    def __init__(self, due: DueNotices, settings: WebhookSettings, describe: Describe, lease_s: float) -> None:
        self._due = due
        self._settings = settings
        self._describe = describe
        self._lease_s = lease_s
        self._running: dict[asyncio.Task[None], Delivery] = {}
        self._news = asyncio.Event()  # there may be something to claim, or room for it
        self._is_away = False

    async def watch(self) -> None:
        """Note when jobs end."""
        while True:
            try:
                if await self._due.await_noted():
                    self._news.set()
            except RedisUnavailable:
                self._news.set()  # who claims tells of it
                await asyncio.sleep(AWAY_S)

    async def work(self) -> None:
        """Claim and deliver for ever."""
        while True:
            self._news.clear()
            wait_s = await self._start_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()

    async def stop(self, watching: asyncio.Task[None], grace_s: float) -> None:
        """Let end what is on its way, for a while, then all."""
        try:
            if self._running:
                await asyncio.wait(self._running, timeout=grace_s)
        finally:  # also when canceled once more
            await _cancel_all([watching, *self._running])

    async def _start_due(self) -> float:
        """Begin what there is room for; how long to wait before the next look, if there is no news."""
        room = MOST_AT_ONCE - len(self._running)
        if room <= 0:
            return IDLE_S
        try:
            claimed = await self._due.claim(room, Counter(delivery.host for delivery in self._running.values()))
        except RedisUnavailable as exc:
            self._tell_away(str(exc))
            return AWAY_S
        self._tell_away("")
        for delivery in claimed.deliveries:
            self._start(delivery)
        if claimed.dropped:
            log.warning("webhooks dropped", reason="a day old, or too many of one host", job_ids=claimed.dropped)
        return 0.0 if claimed.has_more else min(claimed.wait_s, IDLE_S)

    def _tell_away(self, problem: str) -> None:
        """Once for each time that Redis is away."""
        if problem and not self._is_away:
            log.warning("webhooks wait for redis", problem=problem)
        self._is_away = bool(problem)

    def _start(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._deliver(delivery))
        self._running[task] = delivery
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._news.set()

    async def _deliver(self, delivery: Delivery) -> None:
        deadline = time.monotonic() + self._lease_s
        try:
            verdict = await self._try(delivery)
            await self._settle(delivery, verdict, deadline)
        except Exception:  # the top of a task; the notice is due again when its lease is over
            log.exception("webhook broke off", job_id=delivery.job_id)
        else:
            _tell(delivery, verdict)

    async def _try(self, delivery: Delivery) -> Verdict:
        try:
            async with asyncio.timeout(self._settings.describe_timeout_s):
                described = await self._describe(delivery.job_id)
        except (JobsError, TimeoutError) as exc:
            return Again(TROUBLE_S, f"the job cannot be described: {exc or 'time is up'}", is_counted=False)
        message = _write(delivery, described, self._settings.secret)
        outcome = await send(delivery.url, message, self._settings)
        return judge(outcome, delivery.failures, self._settings.backoff_s)

    async def _settle(self, delivery: Delivery, verdict: Verdict, deadline: float) -> None:
        """Tell Redis, however often it takes: else the notice is delivered twice. Raises RedisUnavailable."""
        while True:
            try:
                return await self._tell_redis(delivery, verdict)
            except RedisUnavailable:
                if time.monotonic() + AWAY_S > deadline:
                    raise
                await asyncio.sleep(AWAY_S)

    async def _tell_redis(self, delivery: Delivery, verdict: Verdict) -> None:
        if isinstance(verdict, Again):
            await self._due.again(delivery, verdict.after_s, is_counted=verdict.is_counted)
        else:
            await self._due.done(delivery)


async def _cancel_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """As often as it takes: a library may have forgotten the first time, see `heeding_cancel`."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=CANCEL_AGAIN_S)


def _write(delivery: Delivery, described: Described | None, secret: bytes) -> Message:
    event_id = webhook_id(delivery.entry, delivery.job_id)
    body = make_body(event_id, delivery.job_id, delivery.outcome, delivery.ended_s, described)
    headers = {"content-type": "application/json", "user-agent": "h3render"}
    return Message(headers | sign(secret, event_id, int(time.time()), body), body)


def _tell(delivery: Delivery, verdict: Verdict) -> None:
    """For the log. Never the URL: receivers have secrets in theirs."""
    told = log.bind(job_id=delivery.job_id, host=delivery.host.decode(errors="replace"), tries=delivery.failures + 1)
    match verdict:
        case Delivered(status):
            told.info("webhook delivered", status=status)
        case Again(after_s, reason):
            told.info("webhook failed", reason=reason, again_s=after_s)
        case GivenUp(reason):
            told.warning("webhook given up", reason=reason)
