"""What `h3render worker` runs in the tests of the queue: no model."""

from pathlib import Path

from worker import items
from worker.mgpu import MGPURunner


class Instant(MGPURunner):
    """Is done at once."""

    def __call__(self, *, request, work_dir, resume):
        if self.rank == 0:
            folder = Path(work_dir)
            yield items.StreamHeader(_write(folder / "header.mp4"), segments=1)
            yield items.Segment(0, _write(folder / "segment-00000.m4s"), duration_s=1.0)
            yield items.Finished(_write(folder / "video.mp4"), _write(folder / "report.json"))


def _write(path):
    path.write_bytes(b"{}")
    return path
