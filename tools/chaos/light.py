"""A runner without a model, for a run of seconds. Its steps wait, and its latents tell whether each was done, once."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from jobs.request import ResolvedRequest
from worker import items
from worker.mgpu import MGPURunner

STEP_S, SEGMENT_S = 0.03, 0.05
SEGMENTS = 2


class Light(MGPURunner):
    """Goes on from a checkpoint, as H3Runner does, and reports as that does."""

    def __call__(self, *, request: ResolvedRequest, work_dir: str, resume: items.Resume | None) -> Iterator[items.Item]:
        folder, begun = Path(work_dir), resume or items.Resume(0, None)
        latents = begun.checkpoint.read_text() if begun.checkpoint else digest(request.model_dump_json())
        for step in range(begun.step + 1, request.steps + 1):
            if self.stop_requested():
                return
            time.sleep(STEP_S)
            latents = digest(f"{latents} {step}")
            yield items.StepDone(step, request.steps, 1 - step / request.steps, STEP_S)
            if step % request.checkpoint_every == 0 or step == request.steps:
                yield items.Checkpoint(step, written(folder / f"checkpoint-{step:04}.safetensors", latents))
        yield from self._decode(folder, latents, begun)

    def _decode(self, folder: Path, latents: str, begun: items.Resume) -> Iterator[items.Item]:
        if not begun.segments:
            yield items.StreamHeader(written(folder / "init.mp4", "header"), SEGMENTS)
        for index in range(begun.segments, SEGMENTS):
            time.sleep(SEGMENT_S)
            yield items.Segment(index, written(folder / f"segment-{index:05}.m4s", f"{latents} {index}"), SEGMENT_S)
        report = {
            "resumed": {"step": begun.step, "segments": begun.segments} if begun.checkpoint else None,
            "latents_sha256": {"video": latents, "audio": digest(latents)},
        }
        yield items.Finished(
            written(folder / "video.mp4", latents), written(folder / "report.json", json.dumps(report))
        )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
