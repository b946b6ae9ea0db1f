"""A pod's side of the queue's Redis: whether its worker is busy, what time it is, and what it says of itself.

Redis may be away at any time, and nothing here raises for it.
"""

from dataclasses import dataclass

import structlog
from pydantic import SecretStr
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from infra.boot.settings import BootSettings
from infra.busy import Work, judge_workers
from infra.pod_report import BootState, PodReport, read_contact, write_report
from jobs.workers import parse_time, read_workers

ANSWER_S = 3.0  # whoever ends the pod waits for it meanwhile

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Heard:
    """What Redis told."""

    now: float  # by its clock
    work: Work
    contact_at: float | None  # when a reconciler last looked


class QueueLink:
    """Of one pod."""

    def __init__(self, settings: BootSettings) -> None:
        self._settings = settings
        self._redis = _open(settings.redis_url)
        self._is_away = False

    def listen(self) -> Heard | None:
        """None while Redis does not answer, or none is named."""
        if self._redis is None:
            return None
        try:
            busyness = judge_workers(read_workers(self._redis), self._settings.pod_id, self._settings.name)
            contact_at = read_contact(self._redis, self._settings.fleet)
            heard = Heard(parse_time(self._redis.time()), busyness.work, contact_at)
        except (RedisError, ValueError) as exc:  # the latter where somebody else has written a key of ours
            self._note_away(exc)
            return None
        self._is_away = False
        return heard

    def tell(self, state: BootState, reason: str, gpus: int, *, wants_end: bool) -> None:
        """As of now."""
        if self._redis is None:
            return
        settings = self._settings
        try:
            report = PodReport(
                name=settings.name,
                pod_id=settings.pod_id,
                state=state,
                reason=reason,
                at=parse_time(self._redis.time()),
                gpus=gpus,
                data_center=settings.data_center,
                wants_end=wants_end,
            )
            write_report(self._redis, report)
        except RedisError as exc:
            self._note_away(exc)

    def _note_away(self, error: Exception) -> None:
        if not self._is_away:
            log.warning("Redis does not answer", why=type(error).__name__)
        self._is_away = True


def _open(url: SecretStr | None) -> Redis | None:
    if url is None:
        return None
    try:
        return Redis.from_url(
            url.get_secret_value(),
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        log.warning("REDIS_URL is no redis://, rediss:// or unix:// URL: nobody hears of this pod")
        return None
