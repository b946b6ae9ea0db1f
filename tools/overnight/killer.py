"""Kills one worker in the middle of jobs. Its supervisor starts it again."""

import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from redis import Redis

from jobs.client import Client
from jobs.job_status import JobState, JobStatus
from jobs.lease import LEASES_KEY
from tools.chaos.supervised import SupervisedWorker
from tools.overnight.farm import Farm
from tools.overnight.runners import LONG_STEPS

LOOK_S = 0.03


@dataclass(frozen=True, slots=True)
class Killed:
    """An attempt that ended with its worker's process."""

    job_id: str
    attempt: int
    step: int
    worker: str


def kill_in_jobs(farm: Farm, kills: int, watch: subprocess.Popen[bytes], longest_s: float) -> list[Killed]:
    """One worker, so many times, each time in another attempt at a long job; and await the end of the watch.

    Fewer times if that ends before. Raises TimeoutError.
    """
    deadline = time.monotonic() + longest_s
    killed: list[Killed] = []
    victims = list(farm.workers)
    with Redis.from_url(farm.redis_url) as redis:
        while watch.poll() is None:
            if len(killed) == kills:
                farm.gate.touch()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the batch has not ended in {longest_s:.0f} s")
            if len(killed) < kills and (met := _find(redis, victims)):
                victim, status = met
                victim.send(signal.SIGKILL)
                killed.append(Killed(status.id, status.attempt, status.step or 0, victim.name))
                victims = [victim]  # the same one from now on
                _await_its_end(victim)
            time.sleep(LOOK_S)
    return killed


def _find(redis: Redis, victims: list[SupervisedWorker]) -> tuple[SupervisedWorker, JobStatus] | None:
    """A worker that is in the middle of a long job."""
    names = {worker.queue_name(): worker for worker in victims}
    for status in _running(redis):
        # Where it waits for us: one that goes on might have ended by the time that its worker is killed.
        in_its_middle = status.steps == LONG_STEPS and status.step == LONG_STEPS // 2
        if in_its_middle and status.worker in names:
            return names[status.worker], status
    return None


def _running(redis: Redis) -> Iterator[JobStatus]:
    client = Client(redis)
    for job_id in redis.zrange(LEASES_KEY, 0, -1):
        status = client.job(job_id.decode()).status()
        if status.state is JobState.RUNNING:
            yield status


def _await_its_end(victim: SupervisedWorker) -> None:
    """Until it no longer counts as ready, so that it is met again only in its next life."""
    while victim.is_ready():
        time.sleep(LOOK_S)
