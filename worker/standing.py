"""What a worker says of itself: its record, for `h3render workers`, metrics and health checks."""

import os
import socket
import time
from collections.abc import Sequence

from redis import Redis

from jobs.offers import Offer
from jobs.workers import (
    GPURecord,
    JobRecord,
    WorkerRecord,
    WorkerState,
    find_replaced,
    forget_worker,
    read_workers,
    server_time,
)
from worker.life import Life
from worker.mgpu import MGPUController
from worker.vitals import Driver, read_ranks


class Standing:
    """One worker's record. Threads may share it."""

    def __init__(
        self, name: str | None, life: Life, offer: Offer, controller: MGPUController, gpus: Sequence[str], beat_s: float
    ) -> None:
        self.host = socket.gethostname()
        self.name = name or self.host
        self.id = f"{self.name}-{life.nonce}"  # RQ refuses a fixed name while a dead worker's key lives
        self.offer = offer
        self._life, self._controller, self._driver, self._beat_s = life, controller, Driver(gpus), beat_s
        self.gpus: tuple[GPURecord, ...] = ()  # as of the last `read_gpus`
        self._clock_s = 0.0  # what the server's is ahead of ours
        self._started_at = time.time()

    def record(self, state: WorkerState, reason: str = "", job: JobRecord | None = None) -> WorkerRecord:
        """As of now."""
        return WorkerRecord(
            id=self.id,
            name=self.name,
            host=self.host,
            pid=os.getpid(),
            state=state,
            reason=reason,
            started_at=self._started_at + self._clock_s,
            beat_at=time.time() + self._clock_s,
            beat_s=self._beat_s,
            restarts=self._life.restarts,
            offer=self.offer,
            fleet=self._controller.status().state,
            ranks=read_ranks(self._controller),
            gpus=self.gpus,
            job=job,
        )

    def read_clock(self, redis: Redis) -> None:
        """See how far the server's is ahead."""
        self._clock_s = server_time(redis) - time.time()

    def read_gpus(self) -> None:
        """Ask the driver, which takes a while."""
        self.gpus = self._driver.read_gpus()

    def take_place(self, redis: Redis) -> None:
        """Forget the records of workers that this one replaces, and of those that are long gone."""
        new = self.record(WorkerState.STARTING)
        if replaced := find_replaced(read_workers(redis), new, _pid_exists):
            forget_worker(redis, *(record.id for record in replaced))


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
