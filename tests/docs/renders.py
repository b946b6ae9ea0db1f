"""What a worker does with a job, for tests without one."""

from redis import Redis

from jobs.client import Client
from jobs.events import Finished
from jobs.lease import Lease, Leases, Waiting
from jobs.result import Result, result_key
from jobs.store import Store

VIDEO = b"a video"


def take_job(redis: Redis, job_id: str, queue: str = "default") -> Lease:
    """As the machine that the pages speak of."""
    lease = Leases(redis).claim(Waiting(job_id, queue, "", b"", 0.0), "gpu-1")
    assert lease is not None, f"somebody else has {job_id}"
    return lease


def finish(redis: Redis, lease: Lease, store: Store, store_url: str = "s3://renders") -> None:
    """With a result in the store, and news of it."""
    folder = f"{lease.job_id}/attempts/{lease.attempt}"
    pieces = [
        store.put(f"{folder}/video.mp4", VIDEO, content_type="video/mp4"),
        store.put(f"{folder}/report.json", b"{}", content_type="application/json"),
    ]
    keys = {"video_key": pieces[0].key, "report_key": pieces[1].key, "playlist_key": None}
    result = Result(
        job_id=lease.job_id,
        attempt=lease.attempt,
        request=Client(redis).job(lease.job_id).request(),
        pieces=[{"key": piece.key, "size_bytes": piece.size_bytes, "sha256": piece.sha256} for piece in pieces],
        **keys,
    )
    marker = result_key(lease.job_id)
    store.put_once(marker, result.model_dump_json().encode(), content_type="application/json")
    told = Finished(attempt=lease.attempt, store_url=store_url, result_key=marker, **keys)
    lease.finish(told, {"result_key": marker})
