"""A service that delivers webhooks: in a thread of the test, or as a process that a test may kill.

python -m tests.jobs.http.webhooks.service REDIS_URL LEASE_S
"""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jobs.connection import connect_async
from jobs.http.webhooks.addresses import AddressPolicy
from jobs.http.webhooks.delivery import deliver_for_ever
from jobs.http.webhooks.notice import Describe, Described
from jobs.http.webhooks.settings import WebhookSettings
from jobs.http.webhooks.signature import parse_secret
from jobs.settings import ClientSettings, read_settings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # of the specification's example


async def describe(job_id: str) -> Described:
    return {"id": job_id, "object": "video", "status": "completed", "progress": 100}


def settings_for_loopback(**options: object) -> WebhookSettings:
    return WebhookSettings(parse_secret(SECRET), AddressPolicy(allow_private=True), **options)


async def serve(redis_url: str, settings: WebhookSettings, describe: Describe, **options: float) -> None:
    redis = await connect_async(read_settings(ClientSettings, redis_url=redis_url))
    try:
        await deliver_for_ever(redis, settings, describe, **options)
    finally:
        await redis.aclose()


class Service:
    """In a thread, with an event loop of its own."""

    def __init__(self, redis_url: str, settings: WebhookSettings, describe: Describe, **options: float) -> None:
        self._begun = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(redis_url, settings, describe, options),))
        self._thread.start()
        self._begun.wait()

    async def _run(self, redis_url: str, settings: WebhookSettings, describe: Describe, options: dict) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        with suppress(asyncio.CancelledError):
            await serve(redis_url, settings, describe, **options)

    def ask_to_stop(self) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._task.cancel)

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def running_service(
    redis_url: str, settings: WebhookSettings, describe: Describe = describe, **options: float
) -> Iterator[Service]:
    service = Service(redis_url, settings, describe, **options)
    try:
        yield service
    finally:
        service.ask_to_stop()
        service.join()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], settings_for_loopback(), describe, lease_s=float(sys.argv[2])))
