"""Renders with parts of the model that wait in host memory outside their phase, against all resident."""

import json
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import h3.denoise
import h3.load
from h3.checkpoint import DenoiserFiles, settle
from h3.fp8 import use_fp8
from h3.load import Desk, tensor_names
from h3.model_folder import ModelFolder
from h3.parallel.mode import Mode, trim_for
from h3.part_sizes import is_preparation, measure_needs
from h3.placement import Part, Placement, Stay
from h3.precision import Precision
from h3.runner import H3Runner
from h3.untrained import TINY, Untrained
from jobs.request import GenerateRequest
from tests.h3.checkpoint_files import LINEARS
from worker.items import Finished
from worker.mgpu import MGPUController

REQUEST = GenerateRequest(
    prompt="a red kite", width=64, height=64, frames=39, steps=2, seed=3, preview_every=1, checkpoint_every=1
).resolve()
CPU = torch.device("cpu")
RESIDENT = dict.fromkeys(Part, Stay.RESIDENT)
ENCODERS_OUT = RESIDENT | dict.fromkeys((Part.TEXT_ENCODER, Part.VIDEO_ENCODER, Part.PREPARATION), Stay.PHASE)
ALL_OUT = dict.fromkeys(Part, Stay.PHASE)
DENOISER_PARTS = (Part.PREPARATION, Part.BLOCKS)
CUT = {  # tensors of a block of which a rank has a part
    Precision.BF16: {f"blocks.0.{layer}.weight" for layer in LINEARS},
    Precision.NVFP4: {f"blocks.0.{layer}.{leaf}" for layer in LINEARS for leaf in ("weight", "weight_scale")},
}
ENCODER_ON_HOST = ALL_OUT | {Part.TEXT_ENCODER: Stay.HOST}


class PlacedRunner(H3Runner):
    """With a placement that it is told, whatever the machine is like."""

    def setup(self):
        """Loads nothing: a job does, in a process that has imported all."""

    def __call__(self, *, checkpoint=None, stays=None, kept_timesteps=256, **job):
        if checkpoint is not None:
            h3.denoise.KEPT_TIMESTEPS = kept_timesteps
            h3.load.place = lambda *_, **__: Placement(stays, None, {}, None, {})
            super().setup(checkpoint=checkpoint)
            return
        yield from super().__call__(**job)
        if self.device.type == "cuda" and self.rank == 0:
            self._model.enter()  # no phase
            yield torch.cuda.memory_allocated(self.device)


@contextmanager
def running_rank(backend):
    with MGPUController(PlacedRunner, num_gpus=1, backend=backend, outputs="cpu") as controller:
        controller.start()
        yield controller


def render(rank, tiny, folder, stays, **setup):
    """The latents' hashes of two renders in a row, and what lies on the GPU between jobs."""
    hashes, resting = [], []
    list(rank.stream(checkpoint=str(tiny.transformer.parents[1]), stays=stays, **setup))
    for number in range(2):
        work = folder / str(number)
        work.mkdir(parents=True)
        for item in rank.stream(request=REQUEST, work_dir=str(work)):
            if isinstance(item, Finished):
                hashes.append(json.loads(item.report.read_text())["latents_sha256"])
            elif isinstance(item, int):
                resting.append(item)
    assert hashes[0] == hashes[1]
    return hashes[0], resting


def test_parts_that_come_and_go_give_the_same_bits(tiny, tmp_path):
    with running_rank("gloo") as rank:
        expected, _ = render(rank, tiny, tmp_path / "resident", RESIDENT)
        assert render(rank, tiny, tmp_path / "out", ENCODER_ON_HOST)[0] == expected


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.NVFP4])
def test_a_ranks_part_of_the_blocks_comes_and_goes_as_it_was_cut(precision):
    """The device is `meta`, so that every tensor tells whether it is there."""
    source = Untrained(TINY.model_copy(update={"num_layers": 1}))
    trim = trim_for(Mode.TENSOR, source.config, precision, rank=1, world_size=2)
    model, whole = source.load(CPU, precision, trim=trim), source.load(CPU, precision).state_dict()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert {name for name in before if before[name].shape != whole[name].shape} == CUT[precision]
    parts = {part: {n for n in before if is_preparation(n) is (part is Part.PREPARATION)} for part in DENOISER_PARTS}
    desk = Desk(ALL_OUT, torch.device("meta"))
    for part in DENOISER_PARTS:
        desk.shelve(part, model, (n for n in tensor_names(model) if n in parts[part]))
    for part, shelf in [*desk.shelves, *desk.shelves]:
        shelf.bring()
        there = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_meta}
        assert there.keys() == parts[part]
        assert all((t.shape, t.dtype) == (before[n].shape, before[n].dtype) for n, t in there.items())
        shelf.put_away()
        assert all(equal_bytes(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("mode", list(Mode))
def test_weights_that_are_rounded_as_they_are_read_are_those_that_were_rounded_together(tiny, mode):
    files = DenoiserFiles.open(tiny.transformer)
    trim = trim_for(mode, files.config, Precision.FP8, rank=0, world_size=2)
    together = files.load(CPU, Precision.BF16, trim=trim)
    use_fp8(together.blocks)
    read = files.load(CPU, Precision.FP8, trim=trim).state_dict()
    assert read.keys() == together.state_dict().keys()
    assert all(equal_bytes(tensor, read[name]) for name, tensor in together.state_dict().items())
    needs = measure_needs(ModelFolder.below(tiny.transformer.parents[1]), mode, 2, Precision.FP8)
    assert needs.part_bytes[Part.BLOCKS] == sum(t.nbytes for name, t in read.items() if not is_preparation(name))


def test_of_weights_that_are_rounded_one_at_a_time_is_in_16_bits(tiny, monkeypatch):
    wide = []

    def look(model, precision, name):
        settle(model, precision, name)
        linears = [module for module in model.blocks.modules() if isinstance(module, nn.Linear)]
        wide.append(sum(not linear.weight.is_meta for linear in linears if linear.bias is None))

    monkeypatch.setattr("h3.checkpoint.settle", look)
    DenoiserFiles.open(tiny.transformer).load(CPU, Precision.FP8)
    assert max(wide) == 0


def equal_bytes(left, right):
    return left.dtype == right.dtype and torch.equal(left.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8))


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.gpu
@on_a_gpu
def test_what_waits_on_the_host_is_off_the_gpu(tiny, tmp_path):
    """Also with a schedule that is too long to be kept, which needs AdaLN at every step."""
    with running_rank("nccl") as rank:
        expected, at_rest = render(rank, tiny, tmp_path / "resident", RESIDENT)
    with running_rank("nccl") as rank:
        found, none_at_rest = render(rank, tiny, tmp_path / "all out", ALL_OUT, kept_timesteps=0)
    assert found == expected
    weights = sum(measure_needs(tiny, Mode.ULYSSES, world_size=1).part_bytes.values())
    assert at_rest[-1] - none_at_rest[-1] > 0.95 * weights  # what stays is cuBLAS's


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("stays", [ENCODERS_OUT, ENCODER_ON_HOST], ids=["encoders out", "encoder on the host"])
def test_every_placement_renders_on_a_gpu(tiny, tmp_path, stays):
    with running_rank("nccl") as rank:
        render(rank, tiny, tmp_path, stays)
