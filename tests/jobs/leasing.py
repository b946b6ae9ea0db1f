"""What attempts say in these tests, and how to look at what Redis then has."""

from collections.abc import Iterable
from typing import cast

from redis import Redis
from rq.job import Job
from rq.registry import BaseRegistry
from rq.serializers import JSONSerializer

from jobs.events import FIRST, CheckpointSaved, Event, Failed, Finished, StepDone, parse_entries, read_events
from jobs.lease import LEASES_KEY, Charge, Lease, Leases, Waiting
from jobs.pieces import KeptCheckpoint, KeptPieces, StoredPiece

REQUEST = {"prompt": "a red kite", "seconds": 1.0, "seed": 3}
FINISHED = Finished(attempt=1, store_url="file:///s", result_key="r", video_key="v", report_key="p", playlist_key="l")
FAILED = Failed(attempt=1, reason="the prompt is refused")
STEP = StepDone(step=1, steps=2, sigma=1.0, seconds=0.1)
RESULT = {"result_key": "r"}
KEPT = KeptPieces(checkpoint=KeptCheckpoint(step=2, piece=StoredPiece(key="c", size_bytes=1, sha256="0")))
SAVED = CheckpointSaved(step=2, key="c")

SPEAK = {
    "beat": lambda lease: lease.beat(),
    "seal": lambda lease: lease.seal(),
    "tell": lambda lease: lease.tell(STEP),
    "keep": lambda lease: lease.keep(KEPT, SAVED),
    "hand_back": lambda lease: lease.hand_back(Charge.FATAL, "rank 1 died"),
    "finish": lambda lease: lease.finish(FINISHED, RESULT),
    "fail": lambda lease: lease.fail(FAILED, "refused"),
}


def claim_job(leases: Leases, job_id: str, queue: str = "default") -> Lease | None:
    return leases.claim(Waiting(job_id, queue, "", b"", 0.0), "w")


def run_out(redis: Redis, *leases: Lease) -> None:
    redis.zadd(LEASES_KEY, {lease.job_id: 1 for lease in leases})


def tell(redis: Redis, job_id: str, event: Event) -> None:
    """As lease.lua does."""
    redis.xadd(f"h3:events:{job_id}", {"event": event.model_dump_json()})


def read_log(redis: Redis, job_id: str) -> list[Event]:
    """All that was told of a job, by itself."""
    return without_ids(parse_entries(read_events(job_id, FIRST)(redis)))


def without_ids(told: Iterable[Event]) -> list[Event]:
    """To compare with what was told."""
    return [event.model_copy(update={"id": ""}) for event in told]


def place_of(redis: Redis, job_id: str, queue: str = "default") -> str:
    """Where a job is; fails unless that is exactly one place."""
    places = ["queued"] * redis.lrange(f"rq:queue:{queue}", 0, -1).count(job_id.encode())
    places += ["claimed"] * (redis.zscore(LEASES_KEY, job_id) is not None)
    if outcome := cast(bytes | None, redis.hget(f"rq:job:{job_id}", "h3_outcome")):
        places.append(outcome.decode())
    [place] = places
    return place


def rq_job(redis: Redis, job_id: str) -> Job:
    return Job.fetch(job_id, connection=redis, serializer=JSONSerializer)


def rq_registry(kind: type[BaseRegistry], redis: Redis) -> BaseRegistry:
    return kind("default", connection=redis, serializer=JSONSerializer)


def everything(redis: Redis) -> dict[bytes, bytes | None]:
    return {key: redis.dump(key) for key in redis.scan_iter()}
