"""`h3render encode-text`, `denoise` and `decode`: from files to files, on the tiny checkpoint and real ranks."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import h3render
from h3.checkpoint import load_denoiser
from h3.conditioning import load_conditioning
from h3.denoise import Denoising
from h3.denoise_fleet import plain_rank_errors
from h3.errors import CheckpointError, RanksFailed
from h3.latents_file import read_latents, write_latents
from h3.model_folder import digest
from h3.precision import Precision
from h3.provenance import sha256
from h3.sampler import draw_noise, make_schedule
from h3.sequence import Anchor, Geometry
from h3.tensor_file import TensorReader, read_header, write_tensors
from tests.end_to_end import video
from tests.h3.checkpoint_files import SMALL, write_official
from worker.mgpu import FailureKind, RankDiedError, RankFailure, RankOutOfMemoryError, StartError

CPU = torch.device("cpu")
GEOMETRY = Geometry(96, 64, 39)
SIZE = ("--width", 96, "--height", 64, "--frames", 39)
STEPS, SEED = 2, 440420
RENDER = (*SIZE, "--steps", STEPS, "--seed", SEED)
BF16 = 1e-2  # relative, where heads are shared otherwise and so rounded otherwise
PROMPT = "a red kite over the dunes"


def run(*arguments, code=0):
    """The command in this process; returns what it says."""
    done = CliRunner().invoke(h3render.app, list(map(str, arguments)))
    assert done.exit_code == code, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.stdout if code == 0 else done.stderr


def load_tensors(path):
    with TensorReader(CPU) as reader:
        return {name: reader.read(stored) for name, stored in read_header(path).tensors.items()}


def relative_error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


@contextmanager
def threads_of_a_rank():
    """As many as the only rank of a machine takes: with others, sums may be rounded otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def denoise_here(model, states, noise, precision=None):
    """The same without files and ranks."""
    conditioning = load_conditioning(states)
    denoiser = load_denoiser(model / "FL2VA" / "transformer", CPU, precision)
    with torch.inference_mode():
        denoising = Denoising.begin(
            denoiser,
            conditioning.states,
            conditioning.layout(GEOMETRY),
            make_schedule(STEPS),
            conditioning.keyframe_rows(noise),
        )
        latents = noise.latents
        for step in range(STEPS):
            _, latents = denoising.step(step, latents)
    return latents


def draw(keyframes=0):
    return draw_noise(GEOMETRY, 24, 32, SEED, keyframes)


@pytest.fixture(scope="module")
def model(tiny):
    return tiny.transformer.parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("on_files")


@pytest.fixture(scope="module")
def states(model, folder):
    """Of a prompt alone."""
    path = folder / "states.safetensors"
    said = run("encode-text", "--model", model, "--prompt", PROMPT, "--out", path)
    assert said == f"{path}: {len(load_conditioning(path).states)} tokens\n"
    return path


@pytest.fixture(scope="module")
def framed(model, folder):
    """Of a prompt and two pictures."""
    path = folder / "framed.safetensors"
    Image.new("RGB", (120, 50), "red").save(folder / "begin.png")
    Image.new("RGB", (50, 120), "blue").save(folder / "end.png")
    pictures = ("--first-frame", folder / "begin.png", "--last-frame", folder / "end.png")
    run("encode-text", "--model", model, "--prompt", PROMPT, *pictures, *SIZE[:4], "--out", path)
    return path


@pytest.fixture(scope="module")
def rendered(model, folder, states):
    """By the command as a process of its own."""
    out = folder / "rendered"
    arguments = ("denoise", "--model", model, "--text-states", states, *RENDER, "--out", out)
    command = [sys.executable, "-m", "h3render", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out / 'report.json'}\n"
    assert [line.split(" ")[:2] for line in done.stderr.splitlines()] == [["step", "1/2"], ["step", "2/2"]]
    return out


class TestEncodeText:
    def test_a_prompt_becomes_states(self, states):
        assert {name: (list(t.shape), t.dtype) for name, t in load_tensors(states).items()} == {
            "states": ([len(load_conditioning(states).states), 64], torch.bfloat16)
        }

    def test_pictures_become_keyframes_and_vision_blocks(self, states, framed):
        conditioning = load_conditioning(framed)
        assert conditioning.anchors == (Anchor.FIRST, Anchor.LAST)
        assert [(list(k.shape), k.dtype) for k in conditioning.keyframes] == [([24, 1, 4, 6], torch.float32)] * 2
        assert all(len(block) > 0 for block in conditioning.vision)
        in_vision = sum(map(len, conditioning.vision))
        assert len(conditioning.states) - in_vision >= len(load_conditioning(states).states)

    @pytest.mark.parametrize(
        ("flags", "text"),
        [
            (("--width", 64), "--width and --height go together"),
            (("--height", 64), "--width and --height go together"),
            (("--width", 64, "--height", 64), "give pictures, --width and --height, or none"),
            (("--first-frame", "x.png"), "give pictures, --width and --height, or none"),
            (("--first-frame", "x.png", "--width", 65, "--height", 64), "multiples of 32"),
            (("--first-frame", "x.png", "--width", 0, "--height", 0), "multiples of 32"),
            (("--first-frame", "gone.png", "--width", 64, "--height", 64), "gone.png: not a file that can be read"),
            (("--device", "tpu"), "--device 'tpu' is not one of cuda, cpu"),
            (("--model", "gone"), "gone"),
        ],
        ids=str,
    )
    def test_what_cannot_be_encoded_is_told_in_a_line(self, model, tmp_path, flags, text):
        out = tmp_path / "x.safetensors"
        said = run("encode-text", "--model", model, "--prompt", "x", "--out", out, *flags, code=2)
        assert text in said
        assert said.count("\n") == 1
        assert not list(tmp_path.iterdir())

    def test_a_place_that_is_not_there_is_told_before_the_work(self, tmp_path):
        out = tmp_path / "gone" / "x.safetensors"
        for command in (("encode-text", "--prompt", "x"), ("decode", "--latents", "x")):
            assert "gone is no folder" in run(*command, "--model", "no", "--out", out, code=2)


class TestDenoise:
    def test_latents_have_the_layout_that_others_read(self, rendered):
        found = {name: (list(t.shape), t.dtype) for name, t in load_tensors(rendered / "latents.safetensors").items()}
        assert found == {"video": ([24, 12, 4, 6], torch.float32), "audio": ([2, 32, 65], torch.float32)}
        assert sorted(path.name for path in rendered.iterdir()) == ["latents.safetensors", "report.json"]

    def test_the_report_says_what_was_done(self, rendered, model, states, tiny):
        report = json.loads((rendered / "report.json").read_text())
        latents = read_latents(rendered / "latents.safetensors", GEOMETRY, 24, 32)
        expected = {
            "version": 2,
            "model": str(model),
            "text_states": str(states),
            "noise": None,
            "width": 96,
            "height": 64,
            "frames": 39,
            "steps": STEPS,
            "seed": SEED,
            "tokens": load_conditioning(states).layout(GEOMETRY).tokens,
            "peak_bytes": [0],
            "weight_bytes": [sum(t.nbytes for t in load_denoiser(tiny.transformer, CPU).state_dict().values())],
            "transport": None,
            "latents_sha256": {"video": sha256(latents.video), "audio": sha256(latents.audio)},
        }
        assert {name: report[name] for name in expected} == expected
        assert report.keys() - expected.keys() == {"provenance", "load_s", "step_s"}
        assert len(report["step_s"]) == STEPS
        assert min(report["load_s"], *report["step_s"]) > 0
        provenance = report["provenance"]
        assert provenance["model_digest"] == digest([tiny.transformer])
        assert [provenance[name] for name in ("precision", "mode", "world_size")] == ["bf16", "ulysses", 1]

    def test_it_computes_what_the_model_does_in_process(self, rendered, model, states):
        with threads_of_a_rank():
            here = denoise_here(model, states, draw())
        found = read_latents(rendered / "latents.safetensors", GEOMETRY, 24, 32)
        assert torch.equal(found.video, here.video)
        assert torch.equal(found.audio, here.audio)
        assert relative_error(found.video, draw().latents.video) > BF16

    def test_the_seeds_own_noise_from_a_file_gives_the_same_and_the_mode_is_told(
        self, rendered, model, states, tmp_path
    ):
        noise = tmp_path / "noise.safetensors"
        write_latents(noise, draw().latents, GEOMETRY)
        other_seed = (*RENDER[:-1], SEED + 1)
        arguments = ("denoise", "--model", model, "--text-states", states, *other_seed, "--out", tmp_path / "o")
        run(*arguments, "--noise", noise, "--mode", "tensor")
        for name, tensor in load_tensors(tmp_path / "o" / "latents.safetensors").items():
            assert torch.equal(tensor, load_tensors(rendered / "latents.safetensors")[name])
        report = json.loads((tmp_path / "o" / "report.json").read_text())
        assert (report["noise"], report["provenance"]["mode"]) == (str(noise), "tensor")

    def test_two_ranks_compute_the_same_of_states_alone(self, rendered, model, states, tmp_path):
        alone = tmp_path / "alone.safetensors"
        write_tensors(alone, {"states": load_conditioning(states).states}, {})
        arguments = ("denoise", "--model", model, "--text-states", alone, *RENDER, "--out", tmp_path / "o")
        run(*arguments, "--world-size", 2)
        for name, tensor in load_tensors(tmp_path / "o" / "latents.safetensors").items():
            assert relative_error(tensor, load_tensors(rendered / "latents.safetensors")[name]) < BF16
        report = json.loads((tmp_path / "o" / "report.json").read_text())
        assert (report["peak_bytes"], report["provenance"]["world_size"]) == ([0, 0], 2)

    def test_keyframes_and_precision_count(self, rendered, model, framed, tmp_path):
        arguments = ("denoise", "--model", model, "--text-states", framed, *RENDER, "--out", tmp_path / "o")
        run(*arguments, "--precision", "fp32")
        found = read_latents(tmp_path / "o" / "latents.safetensors", GEOMETRY, 24, 32)
        here = denoise_here(model, framed, draw(keyframes=2), Precision.FP32)
        assert relative_error(found.video, here.video) < 1e-5
        assert relative_error(found.audio, here.audio) < 1e-5
        plain = read_latents(rendered / "latents.safetensors", GEOMETRY, 24, 32)
        assert relative_error(found.video, plain.video) > BF16
        report = json.loads((tmp_path / "o" / "report.json").read_text())
        assert report["provenance"]["precision"] == "fp32"
        assert report["tokens"] == load_conditioning(framed).layout(GEOMETRY).tokens


@pytest.fixture
def change(tmp_path):
    """Writes a file again, with some tensors or metadata changed."""

    def change(path, metadata=None, **tensors):
        kept = read_header(path).metadata | (metadata or {})
        changed = load_tensors(path) | {name: tensor.contiguous() for name, tensor in tensors.items()}
        target = tmp_path / "changed.safetensors"
        write_tensors(target, changed, kept)
        return target

    return change


class TestRefusing:
    """Before any rank is started."""

    @pytest.fixture
    def refuse(self, model, states, tmp_path):
        def refuse(*flags, text, text_states=states, lines=1):
            arguments = ("denoise", "--model", model, "--text-states", text_states, *RENDER, "--out", tmp_path / "o")
            said = run(*arguments, *flags, code=2)
            assert text in said
            assert lines is None or said.count("\n") == lines
            assert not (tmp_path / "o").exists()

        return refuse

    @pytest.mark.parametrize(
        ("flags", "text"),
        [
            (("--precision", "fp16"), "precision 'fp16' is not one of fp32, bf16, nvfp4, fp8; fp16 overflows"),
            (("--precision", "nvfp4"), "holds bf16 weights, not nvfp4"),
            (("--world-size", 10), "9 attention heads"),
            (("--mode", "pipeline"), "--mode 'pipeline' is not one of ulysses, tensor"),
            (("--attention", "hyper"), "--attention 'hyper' is not one of auto, sdpa, cudnn, flash, efficient, fa3"),
            (("--attention", "fa3", "--device", "cpu"), "attention fa3 takes a CUDA GPU: ask for sdpa or auto"),
            (("--model", "gone"), "gone"),
            (("--text-states", "gone.safetensors"), "gone.safetensors is missing"),
            (("--noise", "gone.safetensors"), "gone.safetensors is missing"),
            (("--frames", 40), "40 frames: must be 17n + 5"),
            (("--width", 100), "multiples of 32"),
        ],
        ids=str,
    )
    def test_flags(self, refuse, flags, text):
        refuse(*flags, text=text)

    @pytest.mark.parametrize("seed", [-1, 2**63])
    def test_a_seed_that_no_request_may_have(self, refuse, seed):
        refuse("--seed", seed, text="--seed", lines=None)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
    def test_a_gpu_that_is_not_there(self, refuse):
        refuse("--device", "cuda", text="--device cuda: torch sees no GPU here")

    def test_more_ranks_than_gpus(self, refuse, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        refuse("--world-size", 3, text="--world-size 3 takes a GPU for each rank; torch sees 2 here")

    def test_states_of_another_model(self, refuse, change, states):
        for wrong, told in (
            (torch.zeros(5, 63), "states is [5, 63], expected [tokens, 64]"),
            (torch.zeros(5, 64, dtype=torch.int64), "states is [5, 64] int64"),
        ):
            refuse(text_states=change(states, states=wrong), text=told)

    def test_keyframes_of_another_video_or_model(self, refuse, change, framed):
        found = load_tensors(framed)["keyframes"]
        for wrong, told in (
            (found[..., :4], "a keyframe has [4, 4] latents, the video [4, 6]"),
            (found[:, :23], "keyframes have 23 channels, expected 24"),
            (found.bfloat16(), "keyframes is [2, 24, 1, 4, 6] bfloat16"),
        ):
            refuse(text_states=change(framed, keyframes=wrong), text=told)
        doubled = change(framed, {"anchors": '["first", "first"]'})
        refuse(text_states=doubled, text="the anchors first, first")

    def test_noise_of_another_video(self, refuse, tmp_path):
        other = replace(GEOMETRY, frames=22)
        write_latents(tmp_path / "noise", draw_noise(other, 24, 32, SEED).latents, other)
        refuse("--noise", tmp_path / "noise", text="video is [24, 7, 4, 6] float32, expected [24, 12, 4, 6] float32")
        write_tensors(tmp_path / "noise", {"video": torch.zeros(24, 12, 4, 6)}, {})
        refuse("--noise", tmp_path / "noise", text="noise lacks tensor audio")


class TestErrorsOfRanks:
    def test_an_order_that_only_the_weights_tell_is_told_as_any_other_fault_of_a_file(self, small, tmp_path):
        tensors = small.model.state_dict()
        for i in range(2):
            weight = tensors[f"blocks.{i}.attn.qkv_proj.weight"] = tensors[f"blocks.{i}.attn.qkv_proj.weight"].clone()
            weight[96:] /= 2
        wrong = write_official(tmp_path / "wrong", tensors, SMALL)
        with pytest.raises(CheckpointError) as expected:
            load_denoiser(wrong, CPU)
        write_tensors(tmp_path / "states", {"states": torch.zeros(3, SMALL.text_dim)}, {})
        arguments = ("--model", wrong, "--text-states", tmp_path / "states", *RENDER, "--out", tmp_path / "o")
        assert run("denoise", *arguments, code=2) == f"{expected.value}\n"
        assert not list((tmp_path / "o").glob("*"))

    @pytest.mark.parametrize(
        ("error", "kind", "cause", "text", "told"),
        [
            (
                RankOutOfMemoryError,
                FailureKind.OUT_OF_MEMORY,
                "OutOfMemoryError",
                "no room\n|===|",
                "take fewer frames",
            ),
            (StartError, FailureKind.OUT_OF_MEMORY, "OutOfMemoryError", "no room\n|===|", "a smaller precision"),
            (RankDiedError, FailureKind.DIED, "SIGKILL", "killed", "rank 1 died in phase running: SIGKILL: killed"),
            (StartError, FailureKind.RAISED, "RuntimeError", "NCCL", "rank 1 raised in phase running: RuntimeError"),
        ],
    )
    def test_what_no_usage_can_mend_is_told_in_a_line_with_the_logs(self, tmp_path, error, kind, cause, text, told):
        failure = RankFailure(1, 7, "running", cause, text, traceback="Traceback ...", kind=kind)
        with pytest.raises(RanksFailed) as caught, plain_rank_errors():
            raise error("the fleet is gone", [failure], [tmp_path / "rank1.log"])
        assert told in str(caught.value)
        assert str(caught.value).endswith(f"(logs of the ranks: {tmp_path})")
        assert "\n" not in str(caught.value)

    def test_they_end_the_command_with_1(self, model, states, tmp_path, monkeypatch):
        def break_off(*_arguments):
            raise RanksFailed("rank 1 died")

        monkeypatch.setattr("h3.denoise_fleet.Fleet.run", break_off)
        arguments = ("--model", model, "--text-states", states, *RENDER, "--out", tmp_path / "o")
        assert run("denoise", *arguments, code=1) == "rank 1 died\n"


class TestDecode:
    def test_a_video_with_sound_can_be_played(self, rendered, model, tmp_path):
        out = tmp_path / "video.mp4"
        said = run("decode", "--model", model, "--latents", rendered / "latents.safetensors", "--out", out)
        assert said == f"{out}\n"
        found = video.read(out)
        assert found.pictures.shape == (39, 64, 96, 3)
        assert (found.fps, found.sample_rate) == (24, 32_000)
        assert found.samples.shape[0] == 2
        assert found.samples.shape[1] == pytest.approx(39 / 24 * 32_000, abs=1024)  # one packet of AAC
        assert not np.allclose(found.samples[0], found.samples[1])
        assert [path.name for path in tmp_path.iterdir()] == ["video.mp4"]

    def test_what_are_no_latents_is_told_in_a_line(self, model, states, tmp_path):
        shapes = {"no latents `video`": (24, 12, 4), "12 latent": (24, 13, 4, 6), "video is [23": (23, 12, 4, 6)}
        for number, (told, shape) in enumerate(shapes.items()):
            path = tmp_path / f"{number}.safetensors"
            write_tensors(path, {"video": torch.zeros(shape), "audio": torch.zeros(2, 32, 65)}, {})
            said = run("decode", "--model", model, "--latents", path, "--out", tmp_path / "x.mp4", code=2)
            assert told.replace("12 latent", "13 latent frames: must be 5n + 2") in said
            assert said.count("\n") == 1
        run("decode", "--model", model, "--latents", states, "--out", tmp_path / "x.mp4", code=2)
        assert not (tmp_path / "x.mp4").exists()
