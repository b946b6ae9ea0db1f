"""`h3render bench step`: its turns, its parts, what it keeps and what it refuses. How fast it was, a GPU says."""

import json

import pytest
import torch
from PIL import Image

from h3.bench.stopwatch import watching_parts
from h3.bench.work import Part
from tests.h3.bench.command import run
from tests.h3.random_models import MEDIUM, random_denoiser
from tests.h3.test_fused import velocity

SMALL = ("--tiny", "--shape", "64x32x22", "--steps", 1)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Ours with two attentions and a peer: the report, what was said, and the plot."""
    folder = tmp_path_factory.mktemp("bench")
    report, plot = folder / "step.json", folder / "step.png"
    done = run(
        *("step", *SMALL, "--precision", "fp8", "--precision", "fp8@sdpa"),
        *("--peer", "diffusers", "--report", report, "--plot", plot),
    )
    return json.loads(report.read_text()), done, plot


def test_contenders_take_turns_forth_and_back(bench):
    _, done, _ = bench
    turns = [line.partition(":")[0] for line in done.stderr.splitlines() if ": 64x32/22 " in line]
    forth = ["h3render fp8", "h3render fp8 sdpa", "diffusers eager"]
    assert turns == [*forth, *reversed(forth)]


def test_a_report_has_what_is_needed_to_judge_it(bench):
    report, _, _ = bench
    assert report["machine"].keys() >= {"date", "devices", "torch", "python", "command"}
    assert report["world_size"] == 1
    assert [result["name"] for result in report["results"]] == ["h3render fp8", "h3render fp8 sdpa", "diffusers eager"]
    for result in report["results"]:
        steps = [seconds for turn in result["turns"] for seconds in turn["step_s"]]
        assert len(steps) == 2
        assert min(steps) <= result["step_s"] <= max(steps)
        assert result["operations_per_s"] == pytest.approx(result["operations"] / result["step_s"])
        assert result["tokens"] == 388
    assert [result["turns"][0]["precision"] for result in report["results"]] == ["fp8", "fp8", "bf16"]


def test_the_parts_of_ours_are_told_beside_their_floors(bench):
    report, _, _ = bench
    for result in report["results"][:2]:
        assert result["parts"].keys() == {str(part) for part in Part if part is not Part.TRANSPORT}
        for name, part in result["parts"].items():
            assert part["seconds"] > 0, name
            assert part["floor_s"] > 0, name
    assert report["results"][2]["parts"] == {}


def test_on_two_ranks_transport_is_a_part(tmp_path):
    report = tmp_path / "step.json"
    run("step", *SMALL, "--world-size", 2, "--report", report)
    [result] = json.loads(report.read_text())["results"]
    assert result["parts"][Part.TRANSPORT]["seconds"] > 0


def test_a_person_sees_who_is_faster_and_where_time_goes(bench):
    _, done, plot = bench
    for told in (
        "64x32, 22 frames, 388 tokens",
        "diffusers eager",
        "best peer takes",
        "between the products",
        "floors:",
    ):
        assert told in done.stdout
    with Image.open(plot) as picture:
        assert picture.width > 1000


@torch.inference_mode()
def test_parts_add_up_to_the_step_and_the_model_is_left_as_it_was():
    model = random_denoiser(MEDIUM)
    before = velocity(model)
    attends = [block.attn.attend for block in model.blocks]
    with watching_parts(model, torch.device("cpu")) as found:
        assert torch.equal(velocity(model), before)
    assert all(seconds > 0 for part, seconds in found.items() if part is not Part.TRANSPORT)
    assert found[Part.TRANSPORT] == 0
    assert [block.attn.attend for block in model.blocks] == attends
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--peer", "sglang"), "--peer 'sglang' is not diffusers"),
        (("--precision", "fp16"), "precision 'fp16' is not one of"),
        (("--precision", "fp8@fast"), "attention 'fast' is not one of"),
        (("--report", "step.txt"), "--report step.txt: let its name end with .json"),
        (("--plot", "nowhere/step.png"), "nowhere is no folder: make it first"),
        (("--shape", "100x64x39"), "both sides must be multiples of 32"),
        (("--peer", "diffusers", "--world-size", "2"), "--peer diffusers shares a step over GPUs only"),
        (("--mode", "ring"), "--mode 'ring' is not one of ulysses, tensor"),
        (("--model", "nowhere"), "nowhere is missing"),
    ],
)
def test_wrong_usage_is_refused_before_a_rank_is_started(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = () if "--model" in arguments else ("--tiny",)
    done = run("step", *tiny, *arguments, code=2)
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert "loading" not in done.stderr


def test_a_model_of_files_has_its_own_sizes(tiny):
    done = run("step", "--model", tiny.transformer, "--tiny", code=2)
    assert "--model has its own sizes" in done.stderr
