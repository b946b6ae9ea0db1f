"""Checkpoints of the whole model and of the denoiser alone, written once for all tests."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from h3.convert import Target, save_denoiser
from h3.model import Denoiser
from h3.model_folder import ModelFolder
from tests.h3.checkpoint_files import SMALL, SMALL_PRUNED
from tests.h3.random_models import MEDIUM, MEDIUM_PRUNED, random_denoiser


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads of one small operation wait for each other in a loop: on busy cores that is several times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny(tiny_checkpoint: Path) -> ModelFolder:
    return ModelFolder.below(tiny_checkpoint)


@pytest.fixture
def tiny_copy(tiny: ModelFolder, tmp_path: Path) -> Path:
    """Root of a tiny checkpoint that a test may damage."""
    return shutil.copytree(tiny.transformer.parents[1], tmp_path / "damaged")


@dataclass(frozen=True)
class Written:
    """A denoiser and its twin with a short curve over time, and each format's files of one of them."""

    model: Denoiser
    pruned: Denoiser
    paths: dict[Target, Path]

    def model_in(self, target: Target) -> Denoiser:
        """Whose weights those files hold."""
        return self.model if target in (Target.OFFICIAL, Target.DIFFUSERS) else self.pruned


def write_all(folder: Path, model: Denoiser, pruned: Denoiser, shard_bytes: int) -> Written:
    paths = {
        Target.OFFICIAL: folder / "official",
        Target.DIFFUSERS: folder / "diffusers",
        Target.COMFY_PRUNED: folder / "pruned.safetensors",
        Target.COMFY_NVFP4: folder / "nvfp4.safetensors",
    }
    written = Written(model, pruned, paths)
    for target, path in paths.items():
        save_denoiser(written.model_in(target), path, target, shard_bytes=shard_bytes)
    return written


@pytest.fixture(scope="session")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Large enough to tell right from wrong by its velocity: 80 MB."""
    models = random_denoiser(MEDIUM), random_denoiser(MEDIUM_PRUNED)
    return write_all(tmp_path_factory.mktemp("medium"), *models, shard_bytes=16 * 2**20)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Loads in milliseconds. Three shards."""
    models = random_denoiser(SMALL), random_denoiser(SMALL_PRUNED)
    return write_all(tmp_path_factory.mktemp("small"), *models, shard_bytes=60_000)
