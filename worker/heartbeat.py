"""Keeps a running attempt's claim alive from a thread with a Redis client of its own."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError

LEASE_S = 60
BEAT_S = 10
ANSWER_TIMEOUT_S = 5.0

log = structlog.get_logger()


class Heartbeat:
    """Calls `beat` with a pipeline every BEAT_S seconds until closed."""

    def __init__(self, redis_url: str, beat: Callable[[Pipeline], None]) -> None:
        # Not the worker's client: a blocked or broken connection there must not stop the beats.
        self._redis = Redis.from_url(redis_url, socket_timeout=ANSWER_TIMEOUT_S)
        self._beat = beat
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        while not self._closed.wait(BEAT_S):
            try:
                with self._redis.pipeline() as pipeline:
                    self._beat(pipeline)
                    pipeline.execute()
            except RedisError as exc:
                log.warning("heartbeat not delivered", error=str(exc))
