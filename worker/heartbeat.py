"""Says that this worker lives, and looks that its fleet does: a thread with a Redis client of its own."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

ANSWER_TIMEOUT_S = 5.0
_LOOKS_A_BEAT = 10
_LONGEST_LOOK_S = 1.0

log = structlog.get_logger()


class Heartbeat:
    """Calls `beat` with its client every `beat_s` until closed.

    look  called more often, about once a second; it must not wait
    ask   likewise, with the client, while Redis answers
    """

    def __init__(
        self,
        redis_url: str,
        beat_s: float,
        *,
        beat: Callable[[Redis], None],
        look: Callable[[], None],
        ask: Callable[[Redis], None],
    ) -> None:
        # Not the worker's client: a blocked or broken connection there must not stop the beats.
        self._redis = Redis.from_url(
            redis_url,
            socket_timeout=ANSWER_TIMEOUT_S,
            socket_connect_timeout=ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._beat_s, self._beat, self._look, self._ask = beat_s, beat, look, ask
        self.is_answered = True  # by Redis, the last time
        self._answered_at = self._looked_at = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join(2 * ANSWER_TIMEOUT_S)
        self._redis.close()

    @property
    def unanswered_s(self) -> float:
        """Since Redis has answered."""
        return time.monotonic() - self._answered_at

    @property
    def unlooked_s(self) -> float:
        """Since the thread has gone round; it hangs or has died if that is long."""
        return time.monotonic() - self._looked_at

    def _run(self) -> None:
        beat_at = time.monotonic()
        while not self._closed.wait(min(self._beat_s / _LOOKS_A_BEAT, _LONGEST_LOOK_S)):
            try:
                self._looked_at = time.monotonic()
                self._look()
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + self._beat_s
                    self._beat(self._redis)
                    self.is_answered = True
                elif self.is_answered:
                    self._ask(self._redis)
                self._answered_at = time.monotonic() if self.is_answered else self._answered_at
            except RedisError as exc:
                self.is_answered = False
                log.error("unhealthy: Redis does not answer", error=str(exc), silent_s=round(self.unanswered_s))  # noqa: TRY400
            except Exception:
                log.exception("heartbeat broken")  # and tried again: without it the lease is lost
