"""A runner without a model, whose ranks really run and really fail: its job's prompt is a script.

Loaded in the worker, too, where a test can have a signal sent, or an upload wait, at an exact moment.
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

from jobs.request import ResolvedRequest
from tests.waiting import eventually
from worker.items import Checkpoint, Finished, Item, Resume, Segment, StepDone, StreamHeader, TextEncoded
from worker.mgpu import MGPURunner, RunnerError

TRACE = "TEST_TRACE"  # a file: one line for each step and segment that was rendered
SIGNAL_AT = "TEST_SIGNAL_AT"  # a moment of the worker at which it gets a SIGTERM, once
HOLD = "TEST_HOLD"  # a file: while it is there, uploads whose key contains what it says wait
SICKNESS = "TEST_SICKNESS"  # a file: a line for each fleet that is to be sick; one that ends with `...` stays
STEP_S = 0.02
LONGEST_WAIT_S = 120.0


@dataclass(frozen=True)
class Script:
    """What happens to a job. A file of the name `gate` opens it. Faults are of the last rank, in the second step."""

    name: str = "job"
    steps: int = 2
    step_s: float = STEP_S
    told_step_s: float | None = None  # what it says that a step took
    checkpoint_every: int = 1
    segments: int = 2
    segment_s: float = 0.0
    gate: str = ""
    gate_text: str = ""  # a file without which the text is not done
    gate_step: int | None = None  # waits before it
    gate_in_step: int | None = None
    gate_segment: int | None = None  # waits before it
    stop_opens_gates: bool = False  # for one that is alone
    is_deaf: bool = False  # never looks whether it is to stop
    hold_gil_s: float = 0.0
    hang_until: str = ""  # a file, whose first reader hangs for ever
    has_sticky_error: bool = False  # where cards may be sick; from then on they are
    runs_out_of_memory: bool = False
    refuse_until: str = ""  # a file, whose first reader refuses when all is done, while the others finish
    leak_bytes: int = 0  # on each rank
    kill_worker: bool = False  # in the first step, before anything is kept

    def request(self, **fields: object) -> dict[str, object]:
        """As a client submits it."""
        size = {"width": 64, "height": 64, "frames": 22, "seed": 1, "preview_every": 0, "checkpoint_every": 1}
        return {"prompt": json.dumps(asdict(self)), "steps": self.steps, **size, **fields}


class Scripted(MGPURunner):
    """Does what the script says; goes on from what earlier attempts have kept."""

    def setup(self, *, checkpoint: str) -> None:
        self._leaked: list[bytes] = []
        if (path := os.environ.get(SICKNESS)) and self._is_last:
            befall(next_sickness(Path(path)))

    def __call__(self, *, request: ResolvedRequest, work_dir: str, resume: Resume | None) -> Iterator[Item]:
        script, folder = Script(**json.loads(request.prompt)), Path(work_dir)
        resume = resume or Resume(0, None)
        self._leaked.append(b"x" * script.leak_bytes)
        if self.rank == 0:
            self._wait_for(script.gate_text, script)
            yield TextEncoded(1, 0.0)
        if not (yield from self._denoise(script, folder, resume)):
            return
        if self.rank == 0:
            yield from self._decode(script, folder, resume)
        elif self._is_last and happens_first(script.refuse_until):
            raise RunnerError("this rank alone refuses")

    def _denoise(self, script: Script, folder: Path, resume: Resume) -> Iterator[Item]:
        """Whether all steps are done. A checkpoint has those that are, also when it is asked to stop."""
        saved = resume.step
        for step in range(resume.step + 1, script.steps + 1):
            self._misbehave(script, step)
            dist.all_reduce(torch.ones(1), group=self.groups.transformer_group)
            if not script.is_deaf and self.stop_requested():
                if self.rank == 0 and saved < step - 1:
                    yield checkpoint(script, step - 1, folder)
                return False
            if step == script.gate_in_step:
                self._wait_for(script.gate, script)
            time.sleep(script.step_s)
            if self.rank == 0:
                trace(f"{script.name} step {step}")
                yield StepDone(step, script.steps, 0.5, script.told_step_s or script.step_s)
                if step % script.checkpoint_every == 0 or step == script.steps:
                    saved = step
                    yield checkpoint(script, step, folder)
        return True

    def _misbehave(self, script: Script, step: int) -> None:
        if step == script.gate_step:
            self._wait_for(script.gate, script)
        if script.kill_worker:
            os.kill(os.getppid(), signal.SIGKILL)
        if step != 2 or not self._is_last:
            return
        if script.hold_gil_s:
            ctypes.PyDLL(None).usleep(int(script.hold_gil_s * 1e6))  # PyDLL: the GIL is kept
        if happens_first(script.hang_until):
            while True:  # it is asked by a signal what it does
                signal.pause()
        if script.has_sticky_error and (path := os.environ.get(SICKNESS)):
            Path(path).write_text("sticky error...")
            raise sticky_error()
        if script.runs_out_of_memory:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    def _decode(self, script: Script, folder: Path, resume: Resume) -> Iterator[Item]:
        if not resume.segments:
            yield StreamHeader(written(folder / "init.mp4", b"header"), script.segments)
        for index in range(resume.segments, script.segments):
            if index == script.gate_segment:
                self._wait_for(script.gate, script)
            time.sleep(script.segment_s)
            if not script.is_deaf and self.stop_pending():
                return
            trace(f"{script.name} segment {index}")
            body = f"{script.name} segment {index}".encode()
            yield Segment(index, written(folder / f"segment-{index:05d}.m4s", body), 0.7)
        yield Finished(written(folder / "video.mp4", b"video"), written(folder / "report.json", b"{}"))

    def _wait_for(self, gate: str, script: Script) -> None:
        def is_open() -> bool:
            return Path(gate).exists() or (script.stop_opens_gates and self.stop_pending())

        if gate:
            eventually(is_open, timeout_s=LONGEST_WAIT_S)

    @property
    def _is_last(self) -> bool:
        return self.rank == self.world_size - 1


def happens_first(marker: str) -> bool:
    """Whether there is such a marker, and nobody has seen it before."""
    if not marker or Path(marker).exists():
        return False
    Path(marker).touch()
    return True


def checkpoint(script: Script, step: int, folder: Path) -> Checkpoint:
    return Checkpoint(step, written(folder / f"checkpoint-{step:04d}.safetensors", f"{script.name} {step}".encode()))


def written(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path


def trace(line: str) -> None:
    if path := os.environ.get(TRACE):
        with Path(path).open("a") as log:  # one short write: lines of several workers do not mix
            log.write(line + "\n")


# --- what befalls a card, from before its fleet is ready


def next_sickness(path: Path) -> str:
    """Of this fleet; it is over with it, unless it is for ever."""
    sicknesses = path.read_text().splitlines() if path.exists() else []
    if sicknesses and not sicknesses[0].endswith("..."):
        path.write_text("\n".join(sicknesses[1:]))
    return sicknesses[0].removesuffix("...") if sicknesses else ""


def befall(sickness: str) -> None:
    match sickness:
        case "sticky error":
            raise sticky_error()
        case "wrong sums":
            distort(dist, "all_reduce", lambda tensor, **_: tensor.add_(1))
        case "wrong products":
            multiply = torch.Tensor.__matmul__
            torch.Tensor.__matmul__ = lambda left, right: multiply(left, right) + 1  # type: ignore[method-assign]


def sticky_error() -> RuntimeError:
    """As torch raises it from then on, whatever is called."""
    return torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def distort(owner: object, name: str, spoil: Callable[..., object]) -> None:
    """Do something to the arguments of a function when it has returned."""
    function = getattr(owner, name)

    def wrapped(*args: object, **kwargs: object) -> object:
        answer = function(*args, **kwargs)
        spoil(*args, **kwargs)
        return answer

    setattr(owner, name, wrapped)


# --- what befalls the worker

if multiprocessing.parent_process() is None and (os.environ.keys() & {SIGNAL_AT, HOLD}):
    # Not in a rank, which needs none of it: a quarter of a second of imports.
    from tests.cases.moments import MOMENTS, hold_uploads

    if moment := os.environ.get(SIGNAL_AT):
        MOMENTS[moment]()
    if hold := os.environ.get(HOLD):
        hold_uploads(Path(hold))
