"""A runner without a model: small real files, and a fate for those jobs whose prompt names one."""

import hashlib
import json
import os
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from jobs.request import FPS, ResolvedRequest
from worker import items
from worker.mgpu import MGPURunner, RunnerError

DIES = "The rank that renders this ends in its second step."
REFUSED = "No rank takes this."
LONG_STEPS = 30  # of a job that is worth two attempts
GATE = "OVERNIGHT_GATE"  # names a file: until it is there, long jobs wait in their middle for whoever kills workers
MOST_WAIT_S = 20.0  # less than a step may take
STEP_S, SEGMENT_S, LOOK_S = 0.03, 0.02, 0.02
SEGMENTS = 2
PICTURE_WIDTH, PICTURE_HEIGHT = 32, 18
DEATH_CODE = 3


class Night(MGPURunner):
    """Goes on from a checkpoint, as H3Runner does, and leaves what that leaves."""

    def __call__(self, *, request: ResolvedRequest, work_dir: str, resume: items.Resume | None) -> Iterator[items.Item]:
        if request.prompt == REFUSED:
            raise RunnerError("this prompt is refused on every rank")
        folder, begun = Path(work_dir), resume or items.Resume(0, None)
        yield items.TextEncoded(len(request.prompt), 0.0)
        for step in range(begun.step + 1, request.steps + 1):
            if self.stop_requested():
                return
            time.sleep(STEP_S)
            if step == 2 and request.prompt == DIES:
                os._exit(DEATH_CODE)
            yield items.StepDone(step, request.steps, 1 - step / request.steps, STEP_S)
            yield from _step_files(step, request, folder)
            if request.steps == LONG_STEPS and step == LONG_STEPS // 2:
                self._await_gate()
        yield from _decode(request, folder, begun)

    def _await_gate(self) -> None:
        gate, deadline = os.environ.get(GATE), time.monotonic() + MOST_WAIT_S
        while gate and not Path(gate).exists() and time.monotonic() < deadline and not self.stop_requested():
            time.sleep(LOOK_S)


def _step_files(step: int, request: ResolvedRequest, folder: Path) -> Iterator[items.Item]:
    if request.preview_every and step % request.preview_every == 0:
        yield items.Preview(step, _written(folder / f"preview-{step:04}.png", draw_picture(f"{request.seed} {step}")))
    if step == request.steps or (request.checkpoint_every and step % request.checkpoint_every == 0):
        yield items.Checkpoint(step, _written(folder / f"checkpoint-{step:04}.safetensors", b"%d" % step))


def _decode(request: ResolvedRequest, folder: Path, begun: items.Resume) -> Iterator[items.Item]:
    if not begun.segments:
        yield items.StreamHeader(_written(folder / "init.mp4", b"header"), SEGMENTS)
    for index in range(begun.segments, SEGMENTS):
        time.sleep(SEGMENT_S)
        path = folder / f"segment-{index:05}.m4s"
        yield items.Segment(index, _written(path, b"segment %d" % index), request.frames / FPS / SEGMENTS)
    report = {"resumed": {"step": begun.step} if begun.checkpoint else None}
    video = f"video of seed {request.seed}".encode()
    yield items.Finished(
        _written(folder / "video.mp4", video), _written(folder / "report.json", json.dumps(report).encode())
    )


def draw_picture(text: str) -> bytes:
    """A PNG of one colour, which stands for the text."""
    colour = hashlib.sha256(text.encode()).digest()[:3]
    lines = (b"\0" + colour * PICTURE_WIDTH) * PICTURE_HEIGHT
    header = struct.pack(">IIBBBBB", PICTURE_WIDTH, PICTURE_HEIGHT, 8, 2, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _written(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path
