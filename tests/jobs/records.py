"""Records of workers, as those would write them."""

from jobs.offers import Offer
from jobs.workers import WorkerRecord, WorkerState, server_time


def record(redis, name="gpu-1", *, ago_s=0.0, nonce="0a1b2c3d", **changes):
    """Of a worker whose last beat was so long ago."""
    now = server_time(redis)
    told = {
        "id": f"{name}-{nonce}",
        "name": name,
        "host": "host",
        "pid": 1,
        "state": WorkerState.READY,
        "started_at": now - 100,
        "beat_at": now - ago_s,
        "beat_s": 10.0,
        "offer": Offer(),
        "fleet": "idle",
    }
    return WorkerRecord(**(told | changes))
