"""A runner without a model, whose ranks really run and really fail: its job's prompt is a script.

Loaded in the worker, too, where a test can have a signal sent at an exact moment.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from jobs.lease import Leases
from jobs.request import ResolvedRequest
from tests.waiting import eventually
from worker.items import Checkpoint, Finished, Item, Resume, Segment, StepDone, StreamHeader
from worker.mgpu import MGPURunner

TRACE = "TEST_TRACE"  # a file: one line for each step and segment that was rendered
SIGNAL_AT = "TEST_SIGNAL_AT"  # a moment of the worker at which it gets a SIGTERM, once
STEP_S = 0.02


@dataclass(frozen=True)
class Script:
    """What happens to a job. A file of the name `gate` opens it."""

    name: str = "job"
    steps: int = 2
    step_s: float = STEP_S
    segments: int = 2
    segment_s: float = 0.0
    gate: str = ""
    gate_segment: int | None = None  # waits before it
    gate_step: int | None = None
    hold_gil_s: float = 0.0  # of the last rank, in the second step
    hang_until: str = ""  # of the last rank, in the second step: a file, whose first reader hangs for ever
    kill_worker: bool = False  # in the first step, before anything is kept

    def request(self) -> dict[str, object]:
        """As a client submits it."""
        size = {"width": 64, "height": 64, "frames": 22, "seed": 1, "preview_every": 0, "checkpoint_every": 1}
        return {"prompt": json.dumps(asdict(self)), "steps": self.steps, **size}


class Scripted(MGPURunner):
    """Does what the script says; goes on from what earlier attempts have kept."""

    def __call__(self, *, request: ResolvedRequest, work_dir: str, resume: Resume | None) -> Iterator[Item]:
        script, folder = Script(**json.loads(request.prompt)), Path(work_dir)
        resume = resume or Resume(0, None)
        for step in range(resume.step + 1, script.steps + 1):
            self._misbehave(script, step)
            dist.all_reduce(torch.ones(1), group=self.groups.transformer_group)
            if self.stop_requested():
                return
            time.sleep(script.step_s)
            if self.rank == 0:
                yield from self._speak_of_step(script, step, folder)
        if self.rank == 0:
            yield from self._decode(script, folder, resume)

    def _misbehave(self, script: Script, step: int) -> None:
        if step == script.gate_step:
            eventually(Path(script.gate).exists, timeout_s=120)
        if script.kill_worker:
            os.kill(os.getppid(), signal.SIGKILL)
        if step != 2 or self.rank != self.world_size - 1:
            return
        if script.hold_gil_s:
            ctypes.PyDLL(None).usleep(int(script.hold_gil_s * 1e6))  # PyDLL: the GIL is kept
        if script.hang_until and not Path(script.hang_until).exists():
            Path(script.hang_until).touch()
            signal.pause()

    def _speak_of_step(self, script: Script, step: int, folder: Path) -> Iterator[Item]:
        trace(f"{script.name} step {step}")
        yield StepDone(step, script.steps, 0.5, script.step_s)
        path = folder / f"checkpoint-{step:04d}.safetensors"
        path.write_bytes(f"{script.name} {step}".encode())
        yield Checkpoint(step, path)

    def _decode(self, script: Script, folder: Path, resume: Resume) -> Iterator[Item]:
        if not resume.segments:
            yield StreamHeader(written(folder / "init.mp4", b"header"), script.segments)
        for index in range(resume.segments, script.segments):
            if index == script.gate_segment:
                eventually(Path(script.gate).exists, timeout_s=120)
            time.sleep(script.segment_s)
            trace(f"{script.name} segment {index}")
            body = f"{script.name} segment {index}".encode()
            yield Segment(index, written(folder / f"segment-{index:05d}.m4s", body), 0.7)
        yield Finished(written(folder / "video.mp4", b"video"), written(folder / "report.json", b"{}"))


def written(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path


def trace(line: str) -> None:
    if path := os.environ.get(TRACE):
        with Path(path).open("a") as log:  # one short write: lines of several workers do not mix
            log.write(line + "\n")


def signal_before(owner: type, name: str) -> None:
    """Send this process a SIGTERM just before a method is called, the first time."""
    method, done = getattr(owner, name), []

    def wrapped(*args: object, **kwargs: object) -> object:
        if not done:
            done.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return method(*args, **kwargs)

    setattr(owner, name, wrapped)


def signal_after(owner: type, name: str) -> None:
    method, done = getattr(owner, name), []

    def wrapped(*args: object, **kwargs: object) -> object:
        answer = method(*args, **kwargs)
        if answer is not None and not done:
            done.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return answer

    setattr(owner, name, wrapped)


MOMENTS: dict[str, Callable[[], None]] = {
    "before the pop": lambda: signal_before(Leases, "claim"),
    "after the pop": lambda: signal_after(Leases, "claim"),
    "in an upload": lambda: _signal_in_upload(),
}


def _signal_in_upload() -> None:
    from jobs.file_store import FileStore

    signal_before(FileStore, "put")


if (moment := os.environ.get(SIGNAL_AT)) and multiprocessing.parent_process() is None:
    MOMENTS[moment]()
