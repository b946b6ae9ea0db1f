"""Records of workers, as those would write them."""

from jobs.offers import Offer
from jobs.workers import WorkerRecord, WorkerState, server_time

LASTING_BEAT_S = 1200.0  # of one that counts as alive for an hour


def record(redis, name="gpu-1", **changes):
    """Of a worker whose beat is now, or `ago_s` ago, by Redis's clock."""
    return record_at(server_time(redis), name, **changes)


def record_at(now, name="gpu-1", *, ago_s=0.0, nonce="0a1b2c3d", **changes):
    """By any clock."""
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
