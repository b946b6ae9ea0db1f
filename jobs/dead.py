"""Jobs that have used up their attempts, and what was queued but is no job: both wait for a person."""

from dataclasses import asdict, dataclass
from typing import Literal, cast

from pydantic import ValidationError
from redis import Redis

from jobs.events import Loss
from jobs.lease import DEAD_KEY, LOSSES_KEY, QUARANTINE_KEY


@dataclass(frozen=True, slots=True)
class DeadJob:
    job_id: str
    kind: Literal["dead", "quarantined"]
    reasons: tuple[str, ...]  # one for each lost attempt

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def list_dead(redis: Redis) -> list[DeadJob]:
    """The longest dead first, then what is quarantined."""
    dead = cast(list[bytes], redis.zrange(DEAD_KEY, 0, -1))
    return [_read_dead(redis, _text(job_id)) for job_id in dead] + [
        DeadJob(_text(job_id), "quarantined", (_text(reason),))
        for job_id, reason in sorted(redis.hgetall(QUARANTINE_KEY).items())
    ]


def _read_dead(redis: Redis, job_id: str) -> DeadJob:
    losses = redis.lrange(LOSSES_KEY.format(job_id=job_id), 0, -1)
    return DeadJob(job_id, "dead", tuple(_describe(text) for text in losses))


def _describe(loss: bytes | str) -> str:
    try:
        read = Loss.model_validate_json(loss)
    except ValidationError:
        return _text(loss)
    return f"attempt {read.attempt} on {read.worker}: {read.reason}"


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace")
