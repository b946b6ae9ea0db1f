"""What one worker is at, and what is asked of it: shared by the thread of its jobs and by that of its heartbeat."""

import time
from dataclasses import dataclass

import structlog

from jobs.lease import Lease, Orders
from jobs.workers import JobRecord, WorkerState
from worker.attempt import Attempt
from worker.departure import Departure

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Running:
    """The attempt that a worker is at."""

    lease: Lease
    attempt: Attempt
    ends_at: float  # time.monotonic(), the job's deadline

    def record(self) -> JobRecord:
        at = self.attempt.progress
        lease = self.lease
        return JobRecord(
            job_id=lease.job_id, attempt=lease.attempt, queue=lease.queue, phase=at.phase, step=at.step, steps=at.steps
        )


class Duty:
    """Each field is written by one thread and read by all."""

    def __init__(self, departure: Departure) -> None:
        self.departure = departure
        self.running: Running | None = None
        self.why_replaced = ""  # the fleet, once it is to be
        self.why_idle = ""  # though there may be jobs
        self.is_paused = False

    @property
    def is_leaving(self) -> bool:
        """Somebody has asked for the worker's end."""
        return self.departure.is_asked

    @property
    def must_leave(self) -> bool:
        """No further job is to be begun in this process."""
        return bool(self.why_replaced) or self.is_leaving

    @property
    def must_restart(self) -> bool:
        """The fleet is to be replaced, and nobody has asked for an end."""
        return bool(self.why_replaced) and not self.is_leaving

    def replace_fleet(self, reason: str) -> None:
        """Before the next job. The first reason stays."""
        self.why_replaced = self.why_replaced or reason

    def ask_to_leave(self) -> None:
        """Safe in a signal handler."""
        self.departure.ask(time.monotonic())

    def heed(self, orders: Orders) -> None:
        """Of the attempt that runs nothing is said here."""
        self.is_paused = orders.pause
        if orders.leave and not self.is_leaving:
            log.info("told to drain")
            self.ask_to_leave()

    def note_idleness(self, reason: str) -> None:
        """Why no job is taken; empty if one may be."""
        if reason != self.why_idle:
            log.warning("taking no job", reason=reason) if reason else log.info("taking jobs again")
            self.why_idle = reason

    def state(self, *, has_fleet: bool) -> WorkerState:
        if self.is_leaving:
            return WorkerState.DRAINING
        if not has_fleet:
            return WorkerState.STARTING
        if self.running is not None:
            return WorkerState.BUSY
        return WorkerState.PAUSED if self.why_idle else WorkerState.READY
