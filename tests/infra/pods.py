"""What RunPod answers and what is ordered, as small as a test needs it."""

from datetime import UTC, datetime, timedelta

from infra.answers import DataCenter, GpuType, Pod
from infra.ledger import Row, RowState
from infra.order import PodOrder, Workspace
from infra.settings import IMAGE, SERVER_EDITION
from jobs.workers import JobRecord, WorkerRecord, WorkerState
from tests.jobs.records import record_at

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
TOKEN = "0123456789abcdef"
NAME = f"h3render-manual-pod-{TOKEN}"
SSH = {"proxy": None, "direct": {"host": "203.0.113.7", "port": 20086, "username": "root", "command": "ssh ..."}}


def make_pod(**fields) -> Pod:
    """One of ours that runs, as RunPod writes it, with other fields on top."""
    written = {
        "id": "pod1",
        "name": NAME,
        "status": "RUNNING",
        "actions": ["stop", "terminate"],
        "image": IMAGE,
        "env": {"SECRET": "canary-of-env"},
        "gpu": {"id": SERVER_EDITION, "count": 8},
        "cloud": "SECURE",
        "dataCenterId": "US-KS-2",
        "cudaVersion": "13.0",
        "mounts": {"persistent": {"size": 100, "path": "/workspace"}},
        "ports": ["22/tcp"],
        "ssh": SSH,
        "cost": 15.12,
        "runtime": {"uptime": 5},
        "createdAt": (NOW - timedelta(hours=1)).isoformat(),
    }
    return Pod.model_validate(written | fields)


def make_order(**fields) -> PodOrder:
    """Eight GPUs with a workspace, and other fields on top."""
    asked = {
        "prefix": "h3render",
        "fleet": "manual",
        "slot": "pod",
        "gpu": SERVER_EDITION,
        "count": 8,
        "image": IMAGE,
        "storage": Workspace(size=100),
    }
    return PodOrder(**(asked | fields))


def make_body(data_center="US-KS-2", token=TOKEN, **fields):
    return make_order(**fields).to_body(data_center, token, NOW + timedelta(hours=6))


def make_row(state=RowState.INTENT, age_s=0.0, **fields) -> Row:
    """An order that is so old."""
    written = {
        "token": TOKEN,
        "name": NAME,
        "state": state,
        "ordered_at": NOW - timedelta(seconds=age_s),
        "at": NOW,
        "usd_per_hour": 15.12,
        "data_center": "US-KS-2",
        "gpu": SERVER_EDITION,
        "count": 8,
        "body_sha256": "0" * 64,
    }
    return Row(**(written | fields))


def make_gpu(places=(("US-KS-2", "HIGH"),), gpu_id=SERVER_EDITION, usd=1.89, largest=8) -> GpuType:
    """A type of the catalog, and its stock."""
    centers = [{"id": center, "name": center, "availability": stock} for center, stock in places]
    return GpuType.model_validate(
        {
            "id": gpu_id,
            "name": gpu_id.removeprefix("NVIDIA "),
            "memory": 96,
            "price": {"secure": usd, "community": 0},
            "maxCount": {"secure": largest, "community": 0},
            "dataCenters": centers,
        }
    )


def make_centers(*ids: str) -> list[DataCenter]:
    return [DataCenter(id=center, name=center, region="EUROPE", networkVolumeTypes=()) for center in ids]


def make_worker(name, job=True, state=WorkerState.BUSY, **fields) -> WorkerRecord:
    """What one says of itself: that it renders, and other fields on top."""
    running = JobRecord(job_id="job1", attempt=1, queue="batch", phase="denoise", step=3, steps=50) if job else None
    return record_at(0.0, name, state=state, job=running, **fields)
