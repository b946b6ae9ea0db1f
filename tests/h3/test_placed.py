"""Renders with parts of the model that wait in host memory outside their phase, against all resident."""

import json

import pytest
import torch

import h3.denoise
import h3.load
from h3.parallel.mode import Mode
from h3.part_sizes import measure_needs
from h3.placement import Part, Placement, Stay
from h3.runner import H3Runner
from jobs.request import GenerateRequest
from worker.items import Finished
from worker.mgpu import MGPUController

REQUEST = GenerateRequest(
    prompt="a red kite", width=64, height=64, frames=39, steps=2, seed=3, preview_every=1, checkpoint_every=1
).resolve()
RESIDENT = dict.fromkeys(Part, Stay.RESIDENT)
ENCODERS_OUT = RESIDENT | dict.fromkeys((Part.TEXT_ENCODER, Part.VIDEO_ENCODER, Part.PREPARATION), Stay.PHASE)
ALL_OUT = dict.fromkeys(Part, Stay.PHASE)
ENCODER_ON_HOST = ALL_OUT | {Part.TEXT_ENCODER: Stay.HOST}


class PlacedRunner(H3Runner):
    """With a placement that it is told, whatever the machine is like."""

    def setup(self, *, checkpoint, stays, kept_timesteps):
        h3.denoise.KEPT_TIMESTEPS = kept_timesteps
        h3.load.place = lambda *_, **__: Placement(stays, None, {}, None, {})
        super().setup(checkpoint=checkpoint)

    def __call__(self, **job):
        yield from super().__call__(**job)
        if self.device.type == "cuda" and self.rank == 0:
            self._model.enter()  # no phase
            yield torch.cuda.memory_allocated(self.device)


def render(tiny, folder, stays, backend, world_size, kept_timesteps=256):
    """The latents' hashes of two renders in a row, and what lies on the GPU between jobs."""
    hashes, resting = [], []
    with MGPUController(PlacedRunner, num_gpus=world_size, backend=backend, outputs="cpu") as controller:
        controller.start(checkpoint=str(tiny.transformer.parents[1]), stays=stays, kept_timesteps=kept_timesteps)
        for number in range(2):
            work = folder / str(number)
            work.mkdir(parents=True)
            for item in controller.stream(request=REQUEST, work_dir=str(work)):
                if isinstance(item, Finished):
                    hashes.append(json.loads(item.report.read_text())["latents_sha256"])
                elif isinstance(item, int):
                    resting.append(item)
    assert hashes[0] == hashes[1]
    return hashes[0], resting


def test_parts_that_come_and_go_give_the_same_bits(tiny, tmp_path):
    expected, _ = render(tiny, tmp_path / "resident", RESIDENT, "gloo", 1)
    assert render(tiny, tmp_path / "out", ENCODER_ON_HOST, "gloo", 1)[0] == expected


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.gpu
@on_a_gpu
def test_what_waits_on_the_host_is_off_the_gpu(tiny, tmp_path):
    """Also with a schedule that is too long to be kept, which needs AdaLN at every step."""
    expected, at_rest = render(tiny, tmp_path / "resident", RESIDENT, "nccl", 1)
    found, none_at_rest = render(tiny, tmp_path / "all out", ALL_OUT, "nccl", 1, kept_timesteps=0)
    assert found == expected
    weights = sum(measure_needs(tiny, Mode.ULYSSES, world_size=1).part_bytes.values())
    assert at_rest[-1] - none_at_rest[-1] > 0.95 * weights  # what stays is cuBLAS's


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("stays", [ENCODERS_OUT, ENCODER_ON_HOST], ids=["encoders out", "encoder on the host"])
def test_every_placement_renders_on_a_gpu(tiny, tmp_path, stays):
    render(tiny, tmp_path, stays, "nccl", 1)
