"""Renders of the toy model that are taken up again, on real ranks of either mode."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from h3.errors import ResumeRefused
from h3.provenance import Provenance
from h3.resume import Cadence, load_progress, save_progress
from h3.runner import H3Runner, identify
from h3.sampler import Latents
from h3.sequence import Anchor
from jobs.offers import Offer
from jobs.request import Attention, GenerateRequest, Mode, Precision
from tests.h3.fleets import of, running_fleet, stop_after
from worker.items import Checkpoint, Finished, Resume, Segment, StepDone, StreamHeader
from worker.mgpu import RunnerError, SymmetricRunnerError

STEPS = 4
REQUEST = GenerateRequest(
    prompt="a red kite", width=64, height=64, frames=39, steps=STEPS, seed=3, preview_every=0, checkpoint_every=1
).resolve()
HERE = Provenance("digest", "bf16", "ulysses", 2, "sdpa", "2.13", "cpu")


@pytest.fixture(scope="module")
def fleet(tiny_checkpoint):
    with running_fleet(tiny_checkpoint, 2) as controller:
        yield controller


@pytest.fixture(scope="module")
def whole(fleet, tmp_path_factory):
    """An undisturbed render."""
    return render(fleet, tmp_path_factory.mktemp("whole"))


def render(fleet, folder, resume=None, request=REQUEST):
    items = list(fleet.stream(request=request, work_dir=str(folder), resume=resume))
    report = json.loads(items[-1].report.read_text())
    return items, report


def after_step(items, step):
    """The checkpoint."""
    [checkpoint] = [checkpoint for checkpoint in of(items, Checkpoint) if checkpoint.step == step]
    return checkpoint.path


def video_distance(items, others):
    """Of the final latents, relative L2."""
    found, expected = (load_file(after_step(these, STEPS))["video"] for these in (items, others))
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("step", [1, 3, STEPS])
def test_a_render_that_is_taken_up_ends_with_the_same_bits(fleet, whole, tmp_path, step):
    items, report = whole
    again, told = render(fleet, tmp_path, Resume(step, after_step(items, step)))
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


def test_a_render_that_is_stopped_leaves_a_checkpoint_of_its_last_step_and_goes_on_with_the_same_bits(fleet, tmp_path):
    request = REQUEST.model_copy(update={"steps": 8, "frames": 22, "checkpoint_every": 0})
    folders = [tmp_path / name for name in ("whole", "stopped", "again")]
    for folder in folders:
        folder.mkdir()
    _, undisturbed = render(fleet, folders[0], request=request)
    stopped = stop_after(fleet, folders[1], lambda item: isinstance(item, StepDone) and item.step == 2, request)
    last = of(stopped, StepDone)[-1].step
    assert last < 8
    [checkpoint] = of(stopped, Checkpoint)
    assert checkpoint.step == last
    assert stopped[-1] is checkpoint
    again, told = render(fleet, folders[2], Resume(last, checkpoint.path), request)
    assert of(again, StepDone)[0].step == last + 1
    assert told["latents_sha256"] == undisturbed["latents_sha256"]


def test_a_decode_stops_between_two_clips(fleet, tmp_path):
    # Large pictures: ranks run ahead of who reads what they give. Little of it: the sound is decoded at once.
    request = REQUEST.model_copy(update={"steps": 1, "frames": 124, "width": 192, "height": 192})
    stopped = stop_after(fleet, tmp_path, lambda item: isinstance(item, Segment), request)
    assert 1 <= len(of(stopped, Segment)) < 7
    assert not of(stopped, Finished)


@pytest.mark.parametrize(
    ("every", "step_s", "due"),
    [
        (2, 1, [2, 4, 6, 7]),
        (5, 31, [2, 4, 5, 7]),
        (5, 61, [1, 2, 3, 4, 5, 6, 7]),
        (0, 61, [7]),
    ],
)
def test_checkpoints_come_every_so_many_steps_or_every_minute_and_after_the_last_step(every, step_s, due):
    cadence = Cadence(every, steps=7, step=0, saved_at=0.0)
    assert [step for step in range(1, 8) if cadence.is_due(step, step * step_s)] == due


def test_a_checkpoint_of_a_later_version_is_refused_by_name(tmp_path):
    path = tmp_path / "c.safetensors"
    save_file({"video": torch.zeros(1)}, path, metadata={"version": "3"})
    with pytest.raises(ResumeRefused, match="has version '3'; this program reads '2'"):
        load_progress(path)


def test_another_request_begins_anew(fleet, whole, tmp_path):
    other = REQUEST.model_copy(update={"seed": 4})
    again, told = render(fleet, tmp_path, Resume(3, after_step(whole[0], 3)), other)
    assert [done.step for done in of(again, StepDone)] == list(range(1, STEPS + 1))
    assert told["resumed"] is None


def test_a_render_goes_on_with_another_number_of_ranks_and_says_so(tiny_checkpoint, whole, tmp_path):
    items, _ = whole
    with running_fleet(tiny_checkpoint, 1) as alone:
        again, told = render(alone, tmp_path, Resume(2, after_step(items, 2)))
    assert told["resumed"]["across"] == ["world_size"]
    assert video_distance(again, items) < 1e-2  # bf16 sums in another order


def test_a_render_goes_on_in_the_other_mode_and_back_and_says_so(tiny_checkpoint, fleet, whole, tmp_path):
    items, _ = whole
    folders = [tmp_path / name for name in ("there", "back")]
    for folder in folders:
        folder.mkdir()
    with running_fleet(tiny_checkpoint, 2, mode="tensor") as tensor_fleet:
        there, told_there = render(tensor_fleet, folders[0], Resume(1, after_step(items, 1)))
    back, told_back = render(fleet, folders[1], Resume(3, after_step(there, 3)))
    assert [told["provenance"]["mode"] for told in (told_there, told_back)] == ["tensor", "ulysses"]
    assert [told["resumed"]["across"] for told in (told_there, told_back)] == [["mode"]] * 2
    for crossed in (there, back):  # 7e-4 was measured; a rank whose part is left out makes it 1.5e-2
        assert 0 < video_distance(crossed, items) < 1.5e-3


@pytest.mark.parametrize(
    ("name", "asked", "here"),
    [
        ("mode", Mode.TENSOR, "ulysses"),
        ("precision", Precision.NVFP4, "bf16"),
    ],
)
def test_a_request_for_what_ranks_do_not_run_is_refused_by_each(fleet, tmp_path, name, asked, here):
    with pytest.raises(SymmetricRunnerError) as refused:
        render(fleet, tmp_path, request=REQUEST.model_copy(update={name: asked}))
    told = f"{name} {asked} is asked for, and this worker has {here}: ask for that, or for auto"
    assert [str(error) for error in refused.value.errors] == [told] * 2


def test_an_attention_that_does_not_run_here_is_refused_by_name_and_the_ranks_stay(fleet, whole, tmp_path):
    refused, again = tmp_path / "refused", tmp_path / "again"
    refused.mkdir()
    again.mkdir()
    with pytest.raises(SymmetricRunnerError) as told:
        render(fleet, refused, request=REQUEST.model_copy(update={"attention": Attention.FA3}))
    line = "attention fa3 is refused: it takes a CUDA GPU; ask for auto, or wait for a worker that has it"
    assert [str(error) for error in told.value.errors] == [line] * 2
    _, report = render(fleet, again, request=REQUEST.model_copy(update={"attention": Attention.SDPA}))
    assert report["provenance"]["attention_backend"] == "sdpa"
    assert report["latents_sha256"] == whole[1]["latents_sha256"]


def test_an_attention_that_was_not_installed_is_refused_before_a_rank_is_started(tiny, monkeypatch):
    checkpoint = str(tiny.transformer.parents[1])
    H3Runner.preflight(2, checkpoint=checkpoint, attention="sdpa")
    monkeypatch.setattr("h3.runner.find_gpu_bytes", lambda: None)
    with pytest.raises(RunnerError, match="attention flash takes a CUDA GPU: ask for sdpa or auto"):
        H3Runner.preflight(2, checkpoint=checkpoint, attention="flash")
    monkeypatch.setattr("h3.runner.find_gpu_bytes", lambda: 1 << 37)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RunnerError, match=r"fa3_fwd_interface is not installed: pip install 'h3render\[fa3\]'"):
        H3Runner.preflight(2, checkpoint=checkpoint, attention="fa3")


def test_a_runner_offers_every_attention_that_is_installed_whichever_it_prefers(tiny, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sageattention" else object())
    monkeypatch.setattr("h3.runner.find_gpu_bytes", lambda: 1 << 37)
    able = H3Runner.abilities(2, checkpoint=str(tiny.transformer.parents[1]), attention="flash")
    assert able.attentions == ("sdpa", "fa3", "cudnn", "flash", "efficient", "fa3-fp8")
    assert Offer(attentions=able.attentions).attentions[1] is Attention.FA3


@pytest.mark.parametrize(("name", "asked"), [("attention", Attention.SDPA), ("mode", Mode.ULYSSES), ("version", 1)])
def test_a_checkpoint_is_good_for_the_same_request_that_names_how_it_is_run(name, asked):
    assert identify(REQUEST.model_copy(update={name: asked}), {}) == identify(REQUEST, {})


def test_a_runner_tells_what_it_can_render(tiny, monkeypatch):
    monkeypatch.setattr("h3.runner.find_gpu_bytes", lambda: None)
    able = H3Runner.abilities(2, checkpoint=str(tiny.transformer.parents[1]))
    assert (able.modes, able.precisions, able.attentions) == (("ulysses",), ("bf16",), ("sdpa",))


def test_a_runner_offers_the_precision_that_it_is_told(tiny):
    checkpoint = str(tiny.transformer.parents[1])
    assert H3Runner.abilities(2, checkpoint=checkpoint, precision="fp8").precisions == ("fp8",)
    H3Runner.preflight(2, checkpoint=checkpoint, precision="fp8")
    with pytest.raises(RunnerError, match="holds bf16 weights, not nvfp4: h3render checkpoint convert"):
        H3Runner.preflight(2, checkpoint=checkpoint, precision="nvfp4")


def test_ranks_render_in_fp8_near_bf16_and_begin_anew_from_its_checkpoints(tiny_checkpoint, whole, tmp_path):
    """No result is a mixture of both."""
    items, _ = whole
    with running_fleet(tiny_checkpoint, 1, precision="fp8") as fleet:
        rounded, told = render(
            fleet, tmp_path, Resume(2, after_step(items, 2)), REQUEST.model_copy(update={"precision": Precision.FP8})
        )
    assert (told["provenance"]["precision"], told["resumed"]) == ("fp8", None)
    assert [done.step for done in of(rounded, StepDone)] == [1, 2, 3, 4]
    assert 1e-3 < video_distance(rounded, items) < 6e-2


def saved(path, pictures=None, **changes):
    latents = Latents(torch.randn(4, 8), torch.randn(2, 3))
    save_progress(path, latents, 2, STEPS, identify(REQUEST, pictures or {}), replace(HERE, **changes))
    return load_progress(path)


@pytest.mark.parametrize("name", ["model_digest", "precision"])
def test_another_model_or_precision_is_refused_by_name(tmp_path, name):
    progress = saved(tmp_path / "c.safetensors", **{name: "other"})
    with pytest.raises(ResumeRefused, match=f"{name} 'other'"):
        progress.crossed(identify(REQUEST, {}), HERE)


def test_a_checkpoint_of_a_render_with_other_pictures_is_not_used(tmp_path):
    kite, copy, boat = (tmp_path / name for name in ("kite", "copy", "boat"))
    for path, content in ((kite, b"a kite"), (copy, b"a kite"), (boat, b"a boat")):
        path.write_bytes(content)
    progress = saved(tmp_path / "c.safetensors", pictures={Anchor.FIRST: kite, Anchor.LAST: boat})
    for other in (
        {},
        {Anchor.FIRST: kite},
        {Anchor.FIRST: boat, Anchor.LAST: kite},
        {Anchor.FIRST: kite, Anchor.LAST: kite},
    ):
        with pytest.raises(ResumeRefused, match="another request"):
            progress.crossed(identify(REQUEST, other), HERE)
    assert progress.crossed(identify(REQUEST, {Anchor.FIRST: copy, Anchor.LAST: boat}), HERE) == ()


def test_what_may_differ_is_told(tmp_path):
    progress = saved(tmp_path / "c.safetensors", torch="2.9", device="NVIDIA H100")
    assert progress.crossed(identify(REQUEST, {}), HERE) == ("torch", "device")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"rubbish")
    with pytest.raises(ResumeRefused, match="no checkpoint that can be read"):
        load_progress(path)
    with pytest.raises(ResumeRefused, match="no checkpoint that can be read"):
        load_progress(tmp_path / "none")
