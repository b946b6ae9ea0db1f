"""Runners without a model, for tests of what is around one. They run in rank processes."""

import os
import signal
from pathlib import Path

from tests.waiting import eventually
from worker import items
from worker.mgpu import MGPURunner

GO_ON = "TEST_GO_ON"  # a file without which `Waiting` does not go on
LONGEST_WAIT_S = 60.0


class Light(MGPURunner):
    """Two steps and two clips, made of nothing."""

    def setup(self, *, checkpoint):
        pass

    def __call__(self, *, request, work_dir, resume):
        folder = Path(work_dir)
        for step in (1, 2):
            if self.stop_requested():
                return
            if self.rank == 0:
                yield items.StepDone(step, 2, 1.0 / step, 0.01)
            self.between_steps()
        if self.rank == 0:
            yield items.StreamHeader(_file(folder, "init.mp4"), 2)
            for index in (0, 1):
                yield items.Segment(index, _file(folder, f"segment-{index:05d}.m4s"), 1.0)
            yield items.Finished(_file(folder, "video.mp4"), _file(folder, "report.json"))

    def between_steps(self):
        pass


class Waiting(Light):
    """Goes on to the next step when it is told to stop, or when a file is there."""

    def between_steps(self):
        eventually(self._may_go_on, timeout_s=LONGEST_WAIT_S)

    def _may_go_on(self):
        return self.stop_requested() or Path(os.environ[GO_ON]).exists()


class Deaf(Light):
    """Goes on only when a file is there."""

    def between_steps(self):
        eventually(Path(os.environ[GO_ON]).exists, timeout_s=LONGEST_WAIT_S)


class Dying(Light):
    """Kills itself after the first step."""

    def between_steps(self):
        os.kill(os.getpid(), signal.SIGKILL)


def _file(folder, name):
    (folder / name).write_bytes(name.encode())
    return folder / name
