"""Renders of the toy model that are taken up again, on real ranks."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from h3.errors import ResumeRefused
from h3.provenance import Provenance
from h3.resume import load_progress, save_progress
from h3.runner import H3Runner
from h3.sampler import Latents
from jobs.request import GenerateRequest
from worker.items import Checkpoint, Finished, Resume, Segment, StepDone, StreamHeader
from worker.mgpu import MGPUController

STEPS = 4
REQUEST = GenerateRequest(
    prompt="a red kite", width=64, height=64, frames=39, steps=STEPS, seed=3, preview_every=0, checkpoint_every=1
).resolve()
HERE = Provenance("digest", "bf16", "ulysses", 2, "sdpa", "2.13", "cpu")


@pytest.fixture(scope="module")
def fleet(tiny):
    with MGPUController(H3Runner, num_gpus=2, backend="gloo", outputs="cpu") as controller:
        controller.start(checkpoint=str(tiny.transformer.parents[1]))
        yield controller


@pytest.fixture(scope="module")
def whole(fleet, tmp_path_factory):
    """An undisturbed render."""
    return render(fleet, tmp_path_factory.mktemp("whole"))


def render(fleet, folder, resume=None, request=REQUEST):
    items = list(fleet.stream(request=request, work_dir=str(folder), resume=resume))
    report = json.loads(items[-1].report.read_text())
    return items, report


def of(items, kind):
    return [item for item in items if isinstance(item, kind)]


@pytest.mark.parametrize("step", [1, 3, STEPS])
def test_a_render_that_is_taken_up_ends_with_the_same_bits(fleet, whole, tmp_path, step):
    items, report = whole
    [checkpoint] = [c for c in of(items, Checkpoint) if c.step == step]
    again, told = render(fleet, tmp_path, Resume(step, checkpoint.path))
    assert [done.step for done in of(again, StepDone)] == list(range(step + 1, STEPS + 1))
    assert told["latents_sha256"] == report["latents_sha256"]
    assert told["resumed"] == {"step": step, "segments": 0, "across": []}
    assert of(again, Finished)[0].video.read_bytes() == of(items, Finished)[0].video.read_bytes()


def test_a_decode_that_is_taken_up_makes_only_what_is_missing(fleet, whole, tmp_path):
    items, _ = whole
    [header], segments = of(items, StreamHeader), of(items, Segment)
    last = of(items, Checkpoint)[-1]
    again, told = render(fleet, tmp_path, Resume(STEPS, last.path, (header.path, segments[0].path)))
    assert of(again, StreamHeader) == of(again, StepDone) == []
    [rest] = of(again, Segment)
    assert (rest.index, rest.path.read_bytes()) == (1, segments[1].path.read_bytes())
    assert told["resumed"] == {"step": STEPS, "segments": 1, "across": []}
    assert of(again, Finished)[0].video.read_bytes() == of(items, Finished)[0].video.read_bytes()


def test_a_stream_of_another_encoder_is_begun_anew(fleet, whole, tmp_path):
    items, _ = whole
    header = tmp_path / "init.mp4"
    header.write_bytes(b"of another version")
    last, segments = of(items, Checkpoint)[-1], of(items, Segment)
    folder = tmp_path / "work"
    folder.mkdir()
    again, told = render(fleet, folder, Resume(STEPS, last.path, (header, segments[0].path)))
    assert len(of(again, StreamHeader)) == 1
    assert [segment.index for segment in of(again, Segment)] == [0, 1]
    assert told["resumed"]["segments"] == 0


def test_another_request_begins_anew(fleet, whole, tmp_path):
    [checkpoint] = [c for c in of(whole[0], Checkpoint) if c.step == 3]
    other = REQUEST.model_copy(update={"seed": 4})
    again, told = render(fleet, tmp_path, Resume(3, checkpoint.path), other)
    assert [done.step for done in of(again, StepDone)] == list(range(1, STEPS + 1))
    assert told["resumed"] is None


def test_a_render_goes_on_with_another_number_of_ranks_and_says_so(tiny, whole, tmp_path):
    items, _ = whole
    [checkpoint] = [c for c in of(items, Checkpoint) if c.step == 2]
    with MGPUController(H3Runner, num_gpus=1, backend="gloo", outputs="cpu") as alone:
        alone.start(checkpoint=str(tiny.transformer.parents[1]))
        again, told = render(alone, tmp_path, Resume(2, checkpoint.path))
    assert told["resumed"]["across"] == ["world_size"]
    ours, theirs = (load_file(of(these, Checkpoint)[-1].path)["video"] for these in (again, items))
    assert (ours - theirs).norm() / theirs.norm() < 1e-2  # bf16 sums in another order


def saved(path, **changes):
    latents = Latents(torch.randn(4, 8), torch.randn(2, 3))
    save_progress(path, latents, 2, STEPS, REQUEST.model_dump_json(), replace(HERE, **changes))
    return load_progress(path)


@pytest.mark.parametrize("name", ["model_digest", "precision"])
def test_another_model_or_precision_is_refused_by_name(tmp_path, name):
    progress = saved(tmp_path / "c.safetensors", **{name: "other"})
    with pytest.raises(ResumeRefused, match=f"{name} 'other'"):
        progress.crossed(REQUEST.model_dump(mode="json"), HERE)


def test_what_may_differ_is_told(tmp_path):
    progress = saved(tmp_path / "c.safetensors", torch="2.9", device="NVIDIA H100")
    assert progress.crossed(REQUEST.model_dump(mode="json"), HERE) == ("torch", "device")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"rubbish")
    with pytest.raises(ResumeRefused, match="no checkpoint that can be read"):
        load_progress(path)
    with pytest.raises(ResumeRefused, match="no checkpoint that can be read"):
        load_progress(tmp_path / "none")
