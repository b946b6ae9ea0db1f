"""A runner without a model: it takes as long and yields as much as the script in its prompt says."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from jobs.request import GenerateRequest, ResolvedRequest
from worker import items
from worker.mgpu import MGPURunner

OWN_S = "own_s"  # in the report: how long the runner itself took


@dataclass(frozen=True, slots=True)
class Script:
    """What a job does. Previews and checkpoints come as often as its request says."""

    steps: int = 0
    step_s: float = 0.0
    preview_bytes: int = 0
    checkpoint_bytes: int = 0
    segments: int = 0
    segment_s: float = 0.0
    segment_bytes: int = 100
    video_bytes: int = 100

    @classmethod
    def read(cls, prompt: str) -> Self:
        return cls(**json.loads(prompt))


def make_request(script: Script, preview_every: int = 0, checkpoint_every: int = 0) -> GenerateRequest:
    return GenerateRequest(
        prompt=json.dumps(asdict(script)),
        width=64,
        height=64,
        frames=22,
        steps=max(1, script.steps),
        preview_every=preview_every,
        checkpoint_every=checkpoint_every,
    )


class Scripted(MGPURunner):
    def __call__(self, *, request: ResolvedRequest, work_dir: str, resume: object) -> Iterator[items.Item]:
        script, folder = Script.read(request.prompt), Path(work_dir)
        work, own_s = self._work(script, request, folder), 0.0
        while True:
            begun = time.monotonic()
            item = next(work, None)
            own_s += time.monotonic() - begun  # without what a `yield` takes: that is the worker's
            if item is None:
                break
            if self.rank == 0:
                yield item
        if self.rank == 0:
            report = _write(folder / "report.json", json.dumps({OWN_S: own_s}).encode())
            yield items.Finished(folder / "video.mp4", report)

    def _work(self, script: Script, request: ResolvedRequest, folder: Path) -> Iterator[items.Item]:
        """All but the last item."""
        for step in range(1, script.steps + 1):
            ends_at = time.monotonic() + script.step_s
            made = list(self._step_files(step, script, request, folder))
            time.sleep(max(0.0, ends_at - time.monotonic()))
            yield items.StepDone(step, script.steps, 1.0 - step / script.steps, script.step_s)
            yield from made
        if script.segments:
            yield items.StreamHeader(self._file(folder / "header.mp4", 100), script.segments)
        for index in range(script.segments):
            time.sleep(script.segment_s)
            yield items.Segment(index, self._file(folder / f"segment-{index:05}.m4s", script.segment_bytes), 1.0)
        self._file(folder / "video.mp4", script.video_bytes)

    def _step_files(self, step: int, script: Script, request: ResolvedRequest, folder: Path) -> Iterator[items.Item]:
        if step % request.preview_every == 0:
            yield items.Preview(step, self._file(folder / f"preview-{step:04}.png", script.preview_bytes))
        if step % request.checkpoint_every == 0:
            path = folder / f"checkpoint-{step:04}.safetensors"
            yield items.Checkpoint(step, self._file(path, script.checkpoint_bytes))

    def _file(self, path: Path, size_bytes: int) -> Path:
        return _write(path, os.urandom(size_bytes)) if self.rank == 0 else path


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
