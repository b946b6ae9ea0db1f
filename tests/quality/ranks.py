"""Renders on real ranks, by the runner that a worker loads: with its modes, pictures and checkpoints."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from h3.runner import H3Runner
from jobs.request import GenerateRequest, ResolvedRequest
from tests.quality.drawn import SIZE, STEPS
from worker.items import FIRST_FRAME, Checkpoint, Finished, Item, Resume, StepDone
from worker.mgpu import MGPUController, Stream

PICTURE_KEY = "inputs/first-frame.png"  # as a client would have stored it


@contextmanager
def running_ranks(model: Path, world_size: int, mode: str = "ulysses") -> Iterator["RankStudio"]:
    with MGPUController(H3Runner, num_gpus=world_size, backend="gloo", outputs="cpu") as controller:
        controller.start(checkpoint=str(model), mode=mode)
        yield RankStudio(controller)


@dataclass(frozen=True)
class RankStudio:
    """Ranks that hold all parts of a model."""

    controller: MGPUController

    def render(self, folder: Path, prompt: str, seed: int, first_frame: Path | None = None) -> Path:
        """The finished video file."""
        folder.mkdir(parents=True, exist_ok=True)
        if first_frame is not None:
            shutil.copy(first_frame, folder / FIRST_FRAME)
        request = _request(prompt, seed, None if first_frame is None else PICTURE_KEY)
        return _video(self._stream(folder, request))

    def render_interrupted(self, folder: Path, prompt: str, seed: int, *, after: int) -> Path:
        """As `render`, asked to stop after so many steps and taken up again from the checkpoint that this left."""
        request, parts = _request(prompt, seed), [folder / name for name in ("begun", "resumed")]
        for part in parts:
            part.mkdir(parents=True)
        stream, items = self._stream(parts[0], request), []
        for item in stream:
            items.append(item)
            if isinstance(item, StepDone) and item.step == after:
                stream.request_stop()
        [checkpoint] = [item for item in items if isinstance(item, Checkpoint)]
        assert not any(isinstance(item, Finished) for item in items)
        return _video(self._stream(parts[1], request, Resume(checkpoint.step, checkpoint.path)))

    def _stream(self, folder: Path, request: ResolvedRequest, resume: Resume | None = None) -> Stream:
        return self.controller.stream(request=request, work_dir=str(folder), resume=resume)


def _request(prompt: str, seed: int, first_frame: str | None = None) -> ResolvedRequest:
    return GenerateRequest(
        prompt=prompt,
        width=SIZE.width,
        height=SIZE.height,
        frames=SIZE.frames,
        steps=STEPS,
        seed=seed,
        preview_every=0,
        checkpoint_every=0,
        first_frame=first_frame,
    ).resolve()


def _video(items: Iterator[Item]) -> Path:
    [finished] = [item for item in items if isinstance(item, Finished)]
    return finished.video
