"""Renders on real ranks, by the runner that a worker loads: with its modes, pictures and checkpoints."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.request import GenerateRequest, ResolvedRequest
from tests.h3.fleets import of, running_fleet, stop_after
from tests.quality.drawn import SIZE, STEPS
from worker.items import FIRST_FRAME, Checkpoint, Finished, Resume, StepDone
from worker.mgpu import MGPUController

PICTURE_KEY = "inputs/first-frame.png"  # as a client would have stored it


@contextmanager
def running_ranks(model: Path, world_size: int, mode: str = "ulysses") -> Iterator["RankStudio"]:
    with running_fleet(model, world_size, mode=mode) as fleet:
        yield RankStudio(fleet)


@dataclass(frozen=True)
class RankStudio:
    """Ranks that hold all parts of a model."""

    fleet: MGPUController

    def render(self, folder: Path, prompt: str, seed: int, first_frame: Path | None = None) -> Path:
        """The finished video file."""
        folder.mkdir(parents=True, exist_ok=True)
        if first_frame is not None:
            shutil.copy(first_frame, folder / FIRST_FRAME)
        request = _request(prompt, seed, None if first_frame is None else PICTURE_KEY)
        return self._finish(folder, request)

    def render_interrupted(self, folder: Path, prompt: str, seed: int, *, after: int) -> Path:
        """As `render`, asked to stop after so many steps and taken up again from the checkpoint that this left."""
        request, parts = _request(prompt, seed), [folder / name for name in ("begun", "resumed")]
        for part in parts:
            part.mkdir(parents=True)
        items = stop_after(
            self.fleet, parts[0], lambda item: isinstance(item, StepDone) and item.step == after, request
        )
        [checkpoint] = of(items, Checkpoint)
        assert of(items, Finished) == []
        return self._finish(parts[1], request, Resume(checkpoint.step, checkpoint.path))

    def _finish(self, folder: Path, request: ResolvedRequest, resume: Resume | None = None) -> Path:
        [finished] = of(list(self.fleet.stream(request=request, work_dir=str(folder), resume=resume)), Finished)
        return finished.video


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
