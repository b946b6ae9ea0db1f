"""The workers of a farm as others see them: what each says of itself with its beats, and what it can be told.

Every worker writes its record into one hash. A reader judges by the server's clock who is alive: one that died leaves
a record behind, which is shown for a day or until a worker of its name takes its place.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Literal, Self, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from redis import Redis

from jobs.errors import WorkerNotFound
from jobs.lease import PAUSED_KEY
from jobs.offers import Offer
from jobs.request import ResolvedRequest

WORKERS_KEY = "h3:workers"  # id -> WorkerRecord
ORDERS_KEY = "h3:orders:{name}"  # of a worker: field `pause`, field `drain`
KEPT_S = 24 * 3600  # of one that is silent
BEATS_MISSED = 3  # after which a worker counts as lost


class WorkerState(StrEnum):
    """What a worker does."""

    STARTING = "starting"  # its ranks load the model
    READY = "ready"
    BUSY = "busy"  # one job runs
    PAUSED = "paused"  # takes no job, until it is told to resume
    DRAINING = "draining"  # ends its attempt in good order, and leaves
    UNHEALTHY = "unhealthy"  # has left, because its fleet does not start; a person has to look at it
    LOST = "lost"  # has not been heard of; said by readers only


class RankRecord(BaseModel):
    """One rank process."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    pid: int
    phase: str
    rss_bytes: int = 0


class GPURecord(BaseModel):
    """Memory of one GPU, of whoever uses it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    used_bytes: int
    total_bytes: int


class JobRecord(BaseModel):
    """What runs."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job_id: str
    attempt: int
    queue: str
    phase: str  # text, denoise, decode or upload
    step: int = 0
    steps: int = 0


class WorkerRecord(BaseModel):
    """One worker, as it was at its last beat."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer worker may say more

    version: Literal[1] = 1
    id: str  # RQ's name of it: `name` and a nonce of the process
    name: str
    host: str
    pid: int
    state: WorkerState
    reason: str = ""  # why it takes no job
    started_at: float  # seconds since 1970, by the server's clock
    beat_at: float  # likewise
    beat_s: float  # between two beats
    restarts: int = 0  # of the process by itself, after a lost fleet
    offer: Offer
    fleet: str  # state of the controller
    ranks: tuple[RankRecord, ...] = ()
    gpus: tuple[GPURecord, ...] = ()
    job: JobRecord | None = None

    @classmethod
    def parse(cls, text: str | bytes) -> Self | None:
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    def seen(self, now: float) -> "WorkerRecord":
        """As a reader shows it at a time of the server's."""
        is_lost = self.state is not WorkerState.UNHEALTHY and now - self.beat_at > BEATS_MISSED * self.beat_s
        if not is_lost:
            return self
        reason = f"not heard of for {now - self.beat_at:.0f} s, was {self.state}"
        return self.model_copy(update={"state": WorkerState.LOST, "reason": reason})

    @property
    def is_alive(self) -> bool:
        return self.state not in (WorkerState.UNHEALTHY, WorkerState.LOST)


def server_time(redis: Redis) -> float:
    """Seconds since 1970, by the server's clock."""
    return parse_time(redis.time())


def parse_time(answer: tuple[int, int]) -> float:
    """Of TIME."""
    seconds, microseconds = answer
    return seconds + microseconds / 1e6


def read_workers(redis: Redis) -> list[WorkerRecord]:
    """Every worker that is known, by name; records that cannot be read are left out."""
    now = server_time(redis)
    return parse_workers(cast(dict[bytes, bytes], redis.hgetall(WORKERS_KEY)), now)


def parse_workers(told: dict[bytes, bytes], now: float) -> list[WorkerRecord]:
    """What a reader at that time makes of all records, by name; those that cannot be read are left out."""
    records = [record.seen(now) for text in told.values() if (record := WorkerRecord.parse(text)) is not None]
    return sorted(records, key=lambda record: (record.name, record.started_at))


def write_worker(redis: Redis, record: WorkerRecord) -> None:
    """Renew its record."""
    redis.hset(WORKERS_KEY, record.id, record.model_dump_json())


def forget_worker(redis: Redis, *ids: str) -> None:
    """It has left."""
    redis.hdel(WORKERS_KEY, *ids)


def find_replaced(
    records: Iterable[WorkerRecord], new: WorkerRecord, pid_exists: Callable[[int], bool]
) -> list[WorkerRecord]:
    """Those whose place a new worker takes, and those that have been silent for a day."""

    def is_gone(record: WorkerRecord) -> bool:
        if not record.is_alive:
            return True
        # In a container each has the same pid as the one before.
        return record.host == new.host and (record.pid == new.pid or not pid_exists(record.pid))

    def is_old(record: WorkerRecord) -> bool:
        return not record.is_alive and new.beat_at - record.beat_at > KEPT_S

    others = [record for record in records if record.id != new.id]
    return [record for record in others if is_old(record) or (record.name == new.name and is_gone(record))]


def explain_waiting(request: ResolvedRequest, queue: str, workers: Iterable[WorkerRecord]) -> str:
    """Why nobody will take a job as things are; empty if somebody can."""
    alive = [worker for worker in workers if worker.is_alive]
    lacks = {worker.id: worker.offer.missing(request, queue) for worker in alive}
    states = {worker.state for worker in alive if not lacks[worker.id]}
    if states & {WorkerState.READY, WorkerState.BUSY}:
        return ""
    if states:
        return f"waiting: every worker that could take it is {' or '.join(sorted(states))}"
    return (
        f"waiting: no worker with {' or '.join(sorted(set(lacks.values())))}"
        if lacks
        else "waiting: no worker is alive"
    )


def pause_worker(redis: Redis, name: str) -> None:
    """Let it take no job until it is resumed, also if it starts over. Raises WorkerNotFound."""
    find_workers(redis, name)
    redis.hset(ORDERS_KEY.format(name=name), "pause", "1")


def resume_worker(redis: Redis, name: str) -> None:
    """Raises WorkerNotFound unless it is known, or paused."""
    key = ORDERS_KEY.format(name=name)
    if not redis.hdel(key, "pause"):
        find_workers(redis, name)


def drain_worker(redis: Redis, name: str) -> None:
    """Let it leave as SIGTERM does: end its attempt in good order and exit. Raises WorkerNotFound."""
    for worker in find_workers(redis, name):
        key = ORDERS_KEY.format(name=worker.id)  # of this process: one that is started later is not meant
        redis.hset(key, "drain", "1")
        redis.expire(key, KEPT_S)


def find_workers(redis: Redis, name: str) -> list[WorkerRecord]:
    """Those that are alive, by name or by id. Raises WorkerNotFound."""
    workers = read_workers(redis)
    found = [worker for worker in workers if name in (worker.name, worker.id) and worker.is_alive]
    if not found:
        known = ", ".join(sorted({worker.name for worker in workers if worker.is_alive})) or "none"
        raise WorkerNotFound(f"no worker {name!a} is alive; known are: {known} (`h3render workers`)")
    return found


def forget_orders(redis: Redis, *names: str) -> None:
    """What workers were told that are gone, by name or by id."""
    if names:
        redis.delete(*(ORDERS_KEY.format(name=name) for name in names))


def pause_queue(redis: Redis, queue: str) -> None:
    """Let nothing of it be taken; what runs goes on."""
    redis.sadd(PAUSED_KEY, queue)


def resume_queue(redis: Redis, queue: str) -> None:
    redis.srem(PAUSED_KEY, queue)


def is_queue_paused(redis: Redis, queue: str) -> bool:
    return bool(redis.sismember(PAUSED_KEY, queue))
