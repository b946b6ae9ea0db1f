"""A worker as its pages see it, without one."""

from dataclasses import replace

from jobs.offers import Offer
from jobs.workers import GPURecord, RankRecord, WorkerRecord, WorkerState
from worker.farm import Farm
from worker.mgpu.state import State
from worker.view import View

RECORD = WorkerRecord(
    id="w-1",
    name="w",
    host="h",
    pid=1,
    state=WorkerState.READY,
    started_at=0.0,
    beat_at=0.0,
    beat_s=10.0,
    restarts=2,
    offer=Offer(model_digest="abc", most_pixels=1 << 30),
    fleet=State.IDLE,
    ranks=(RankRecord(rank=0, pid=2, phase="ready", rss_bytes=3 << 30),),
    gpus=(GPURecord(used_bytes=40 << 30, total_bytes=140 << 30),),
)
WELL = View(RECORD, Farm(), failed_starts=0, unanswered_s=1.0, unlooked_s=1.0)


def view(**changes):
    """A well worker but for these: fields of the view or of its record."""
    own = {name: changes.pop(name) for name in list(changes) if name in View.__slots__}
    return replace(WELL, record=RECORD.model_copy(update=changes), **own)
