"""The ways to render with a model, each as the farm does it."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import torch

from h3.demo_model import copy_model
from h3.model_folder import ModelFolder
from h3.parallel.mode import Mode
from h3.precision import Precision
from tests.quality.drawn import write_first_frame
from tests.quality.ranks import running_ranks
from tests.quality.studio import Studio
from tools.demo_model.scenes import Scene

FIRST_FRAME = "first-frame.png"  # in the folder of a render that begins with a given one
INTERRUPTED_AFTER = 5  # steps
MOST_RANKS = 3

Render = Callable[[Path, Scene, str, int], Path]  # in a folder, of a scene, by its caption and a seed: the video
Way = Callable[[Path, torch.device], AbstractContextManager[Render]]  # with a model on a device


@contextmanager
def in_precision(precision: Precision, model: Path, device: torch.device) -> Iterator[Render]:
    """In this process."""
    with tempfile.TemporaryDirectory() as folder:
        if precision is Precision.NVFP4:
            copy_model(model, model := Path(folder), precision)
        studio = Studio.open(ModelFolder.below(model), precision, device)
        yield lambda work, _, prompt, seed: studio.render(work, prompt, seed)


@contextmanager
def on_ranks(mode: Mode, world_size: int, model: Path, _: torch.device) -> Iterator[Render]:
    with running_ranks(model, world_size, mode) as studio:
        yield lambda work, _, prompt, seed: studio.render(work, prompt, seed)


@contextmanager
def interrupted(model: Path, _: torch.device) -> Iterator[Render]:
    """Stopped, and taken up again from its checkpoint."""
    with running_ranks(model, 2) as studio:
        yield lambda work, _, prompt, seed: studio.render_interrupted(work, prompt, seed, after=INTERRUPTED_AFTER)


@contextmanager
def from_first_frame(model: Path, _: torch.device) -> Iterator[Render]:
    def render(work: Path, scene: Scene, prompt: str, seed: int) -> Path:
        picture = write_first_frame(work / FIRST_FRAME, scene, seed)
        return studio.render(work, prompt, seed, picture)

    with running_ranks(model, 1) as studio:
        yield render


WAYS: dict[str, Way] = {
    **{precision.value: partial(in_precision, precision) for precision in (Precision.BF16, Precision.NVFP4)},
    **{
        f"{mode}, ranks: {ranks}": partial(on_ranks, mode, ranks) for mode in Mode for ranks in range(1, MOST_RANKS + 1)
    },
    "interrupted": interrupted,
    "first frame": from_first_frame,
    "fp8": partial(in_precision, Precision.FP8),
}
EVERYWHERE = [name for name in WAYS if name != "fp8"]  # FP8 is for GPUs
OF_THE_MODEL = [precision.value for precision in Precision if precision.value in WAYS]  # the others are of the farm
