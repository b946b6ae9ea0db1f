"""What a worker would say of itself."""

from jobs.offers import Offer
from jobs.workers import WorkerRecord, server_time


def record(redis, name, state):
    """It counts as alive for an hour."""
    now = server_time(redis)
    return WorkerRecord(
        id=f"{name}.1",
        name=name,
        host="host",
        pid=1,
        state=state,
        started_at=now,
        beat_at=now,
        beat_s=1200.0,
        offer=Offer(),
        fleet="idle",
    )
