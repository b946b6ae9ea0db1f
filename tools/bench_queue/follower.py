"""Follows one job many times over, in a process of its own: what each follower got, and when.

python -m tools.bench_queue.follower threads|tasks REDIS_URL JOB_ID FOLLOWERS

Says `ready` when each has the first event, and prints what all got as JSON when the job has ended.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from jobs.async_client import AsyncClient
from jobs.client import Client
from jobs.events import Event

Receipt = tuple[str, float]  # id of an event; time.monotonic(), which all processes of a machine share


class Roll:
    """Counts the followers that are there."""

    def __init__(self, followers: int) -> None:
        self._missing, self._lock = followers, threading.Lock()

    def note(self, receipts: Sequence[Receipt]) -> None:
        """Of one follower, after each event."""
        if len(receipts) > 1:
            return
        with self._lock:
            self._missing -= 1
            if not self._missing:
                print("ready", flush=True)  # noqa: T201  to whoever has started us


def receive(event: Event, receipts: list[Receipt], roll: Roll) -> None:
    receipts.append((event.id, time.monotonic()))
    roll.note(receipts)


def follow_in_threads(url: str, job_id: str, followers: int) -> list[list[Receipt]]:
    """One blocking client, and a thread for each follower."""
    client, roll = Client.open(url), Roll(followers)

    def follow() -> list[Receipt]:
        receipts: list[Receipt] = []
        for event in client.job(job_id).events():
            receive(event, receipts, roll)
        return receipts

    with ThreadPoolExecutor(followers) as threads:
        futures = [threads.submit(follow) for _ in range(followers)]
        return [future.result() for future in futures]


async def follow_in_tasks(url: str, job_id: str, followers: int) -> list[list[Receipt]]:
    """One asyncio client, and a task for each follower."""
    roll = Roll(followers)

    async def follow(client: AsyncClient) -> list[Receipt]:
        receipts: list[Receipt] = []
        async for event in (await client.job(job_id)).events():
            receive(event, receipts, roll)
        return receipts

    async with await AsyncClient.open(url) as client:
        return await asyncio.gather(*(follow(client) for _ in range(followers)))


def main(kind: str, url: str, job_id: str, followers: str) -> None:
    if kind == "tasks":
        got = asyncio.run(follow_in_tasks(url, job_id, int(followers)))
    else:
        got = follow_in_threads(url, job_id, int(followers))
    print(json.dumps(got))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
