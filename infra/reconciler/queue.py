"""What the queue tells a reconciler, and what it is told: work, workers, pods' own reports, and orders to workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from redis import Redis

from infra.pod_report import PodReport, forget_reports, note_contact, read_reports
from infra.reconciler.situation import Work
from jobs.backlog import read_backlog
from jobs.errors import WorkerNotFound
from jobs.render_times import read_render_times
from jobs.workers import (
    WorkerRecord,
    drain_worker,
    forget_orders,
    forget_worker,
    pause_worker,
    read_workers,
    resume_worker,
    server_time,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Told:
    """All that the queue says at one moment."""

    work: Work
    workers: Sequence[WorkerRecord]
    reports: Mapping[str, PodReport]
    at_s: float  # by its clock


class Queue(Protocol):
    """The farm's, or one that is played."""

    def look(self) -> Told: ...

    def note_contact(self) -> None:
        """Let the pods know that they are looked after."""

    def pause(self, worker: str) -> None:
        """Let it take no job; nothing if it is gone."""

    def resume(self, worker: str) -> None: ...

    def drain(self, worker: str) -> None:
        """Let it hand its job back, and leave."""

    def forget(self, worker: str) -> None:
        """Its pod is gone."""


class RedisQueue:
    """The farm's."""

    def __init__(self, redis: Redis, fleet: str, world_size: int | None = None) -> None:
        """world_size  ranks of one pod: renders were measured on others, too; None: on all alike"""
        self._redis, self._fleet, self._world_size = redis, fleet, world_size

    def look(self) -> Told:
        """Raises RedisError."""
        times = read_render_times(self._redis)
        if self._world_size is not None:
            times = times.measured_on(self._world_size)
        backlog = read_backlog(self._redis, times=times)
        work = Work(
            seconds=backlog.seconds,
            waiting=backlog.jobs - len(backlog.running),
            running=len(backlog.running),
            p75_s=backlog.p75_s,
            p99_s=backlog.p99_s,
        )
        return Told(work, read_workers(self._redis), read_reports(self._redis), server_time(self._redis))

    def note_contact(self) -> None:
        note_contact(self._redis, self._fleet)

    def pause(self, worker: str) -> None:
        self._order(pause_worker, worker)

    def resume(self, worker: str) -> None:
        self._order(resume_worker, worker)

    def drain(self, worker: str) -> None:
        self._order(drain_worker, worker)

    def forget(self, worker: str) -> None:
        """What was told to it, what its pod said, and its record."""
        ids = [record.id for record in read_workers(self._redis) if record.name == worker]
        if ids:
            forget_worker(self._redis, *ids)
        forget_orders(self._redis, worker, *ids)
        forget_reports(self._redis, worker)

    def _order(self, order: Callable[[Redis, str], None], worker: str) -> None:
        try:
            order(self._redis, worker)
        except WorkerNotFound:
            log.info("a worker was gone before it was told", worker=worker)
