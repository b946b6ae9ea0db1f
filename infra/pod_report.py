"""What a pod says of itself in the queue's Redis, and what it hears there of who watches over it.

All times are of the server's clock: a pod's own, or that of whoever reads, may be wrong.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, cast

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from jobs.workers import server_time

if TYPE_CHECKING:
    from redis import Redis

REPORTS_KEY = "h3:pods:reports"  # pod's name -> PodReport
CONTACT_KEY = "h3:pods:contact:{fleet}"  # seconds since 1970: when a reconciler last looked

log = structlog.get_logger(__name__)


class BootState(StrEnum):
    """How far a pod is."""

    CHECKING = "checking"  # whether the machine is what was ordered
    FETCHING = "fetching"  # its checkpoints
    SERVING = "serving"  # a worker runs, or is about to
    UNFIT = "unfit"  # it cannot serve, and says why; a person or a reconciler ends it
    LEAVING = "leaving"  # its worker is drained, and it asks for its end


class PodReport(BaseModel):
    """One pod, as it said last."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer pod may say more

    version: Literal[1] = 1
    name: str  # of the order, and of the worker
    pod_id: str
    state: BootState
    reason: str = ""  # why it cannot serve, or leaves
    at: float  # seconds since 1970
    gpus: int = 0
    data_center: str = ""
    wants_end: bool = False  # whoever rented it is asked to end it


def write_report(redis: "Redis", report: PodReport) -> None:
    """In place of the one before."""
    redis.hset(REPORTS_KEY, report.name, report.model_dump_json())


def read_reports(redis: "Redis") -> dict[str, PodReport]:
    """Of every pod, by name; those that cannot be read are logged and left out."""
    return dict(_parse(cast(dict[bytes, bytes], redis.hgetall(REPORTS_KEY))))


def _parse(told: dict[bytes, bytes]) -> Iterator[tuple[str, PodReport]]:
    for name, text in told.items():
        try:
            yield name.decode(), PodReport.model_validate_json(text)
        except (ValidationError, UnicodeDecodeError):
            log.warning("a pod's report cannot be read", name=ascii(name))


def forget_reports(redis: "Redis", *names: str) -> None:
    """Of pods that are gone."""
    if names:
        redis.hdel(REPORTS_KEY, *names)


def note_contact(redis: "Redis", fleet: str) -> None:
    """A reconciler looks after the pods of this fleet, now."""
    redis.set(CONTACT_KEY.format(fleet=fleet), server_time(redis))


def read_contact(redis: "Redis", fleet: str) -> float | None:
    """When one last did; none if never."""
    told = cast(bytes | None, redis.get(CONTACT_KEY.format(fleet=fleet)))
    return float(told) if told is not None else None
