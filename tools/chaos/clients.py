"""Who submits the jobs: a client that asks again until it has an answer, and looks for the end of what it asked for."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from jobs.client import Client
from jobs.errors import RedisUnavailable
from tools.chaos.work import Request

QUEUE_KEY = "rq:queue:default"
LOOK_S = 0.1  # between two looks at the queue
ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """What has been asked for, and under which id: all that the check is told."""

    requests: Mapping[str, Request]
    undisturbed: dict[str, str] = field(default_factory=dict)  # job id by name of the request
    jobs: dict[str, str] = field(default_factory=dict)  # name of the request by job id


def render_undisturbed(client: Client, ledger: Ledger, timeout_s: float) -> None:
    """Each request once, before anything is disturbed."""
    handles = {name: client.submit(request) for name, request in ledger.requests.items()}
    for name, handle in handles.items():
        handle.wait(timeout_s=timeout_s)
        ledger.undisturbed[name] = handle.id


class Submitter:
    """In a thread of its own: keeps a few jobs waiting until all are submitted, and then waits for their end."""

    def __init__(self, redis_url: str, ledger: Ledger, *, jobs: int, waiting: int) -> None:
        self._ledger, self._jobs, self._waiting = ledger, jobs, waiting
        self._client = Client.open(redis_url)
        self._redis = Redis.from_url(redis_url, socket_timeout=ANSWER_TIMEOUT_S)
        self._is_closed = threading.Event()
        self.all_taken, self.all_ended = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1, "submitter")

    def __enter__(self) -> Self:
        self._work = self._pool.submit(self._run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises what ended the thread early."""
        self._is_closed.set()
        self._pool.shutdown()
        self._redis.close()
        if error is None:
            self._work.result()

    def _run(self) -> None:
        try:
            self._submit_all()
            self._until(lambda: self._count_waiting() == 0)
            self.all_taken.set()
            for job_id in self._ledger.jobs:
                self._until(partial(self._has_ended, job_id))
        finally:
            self.all_taken.set()  # whoever waits is to hear of a failure, too
            self.all_ended.set()

    def _submit_all(self) -> None:
        names = list(self._ledger.requests)
        for number in range(self._jobs):
            self._until(lambda: self._count_waiting() < self._waiting)
            self._until(partial(self._submit, number, names[number % len(names)]))

    def _submit(self, number: int, name: str) -> bool:
        """The key makes one job of several tries."""
        handle = self._client.submit(self._ledger.requests[name], idempotency_key=f"chaos-{number}")
        self._ledger.jobs[handle.id] = name
        return True

    def _count_waiting(self) -> int:
        return self._redis.llen(QUEUE_KEY)

    def _has_ended(self, job_id: str) -> bool:
        return self._client.job(job_id).status().is_ended

    def _until(self, is_so: Callable[[], bool]) -> None:
        """Ask until it is so, or nobody cares any more. A Redis that is gone is asked again."""
        while not self._is_closed.is_set():
            with suppress(RedisError, RedisUnavailable):
                if is_so():
                    return
            self._is_closed.wait(LOOK_S)
