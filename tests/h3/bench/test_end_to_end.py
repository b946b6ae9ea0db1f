"""`h3render bench end-to-end`: a render from prompt to mp4 on real ranks, cold and warm, told phase by phase."""

import pytest

from h3.bench.end_to_end import Outcome, Phase, Rendered, RunnerReport, Timings, make_request
from h3.errors import ConfigError
from h3.sequence import Geometry
from tests.h3.bench.command import bench, read_json

STEPS = 3
TINY = ("end-to-end", "--tiny", "--device", "cpu", "--steps", STEPS)
SMALL = Geometry(96, 64, 39)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("end-to-end")


@pytest.fixture(scope="module")
def said(folder):
    return bench(*TINY, "--folder", folder, "--report", folder / "report.json")


@pytest.fixture(scope="module")
def report(folder, said):
    return read_json(folder / "report.json")


@pytest.mark.parametrize("which", ["cold", "warm"])
def test_the_phases_of_a_render_add_up_to_it(report, which):
    render = report[which]
    assert list(render["phases"]) == [*Phase]
    assert sum(render["phases"].values()) == pytest.approx(render["seconds"], abs=1e-6)
    assert min(render["phases"].values()) >= 0
    assert render["phases"]["all else"] < 0.5
    for phase in (Phase.TEXT, Phase.PREPARE, Phase.STEPS, Phase.FIRST_SEGMENT, Phase.DECODE):
        assert render["phases"][phase] > 0


def test_only_the_cold_render_waits_for_the_ranks(report):
    assert report["cold"]["phases"]["load"] == report["start"]["seconds"] > 0
    assert report["warm"]["phases"]["load"] == 0
    assert sum(report["start"]["phases"].values()) == pytest.approx(report["start"]["seconds"], abs=1e-6)


@pytest.mark.parametrize("which", ["cold", "warm"])
def test_every_step_is_told_and_sound_and_first_segment_are_parts_of_the_decoding(report, which):
    render = report[which]
    assert len(render["step_s"]) == STEPS
    assert sum(render["step_s"]) == render["phases"]["steps"]
    assert min(render["step_s"]) <= render["median_step_s"] <= max(render["step_s"])
    assert 0 < render["sound_s"] < render["phases"][Phase.FIRST_SEGMENT] < render["decode_s"]
    assert render["until_first_segment_s"] < render["seconds"]
    assert render["video_bytes"] > 1000


def test_both_renders_have_the_same_latents(report, said):
    assert report["same_latents"] is True
    assert report["cold"]["latents_sha256"] == report["warm"]["latents_sha256"]
    assert report["cold"]["latents_sha256"].keys() == {"video", "audio"}
    assert "latents: the same in both" in said


def test_the_report_says_what_was_rendered_and_by_whom(report, folder):
    assert report["request"] == make_request(SMALL, STEPS).model_dump(mode="json")
    assert report["model"] == str(folder / "tiny")
    assert (report["mode"], report["world_size"], report["provenance"]["precision"]) == ("ulysses", 1, "bf16")
    assert report["machine"]["devices"]


def test_a_small_text_encoder_is_told_as_one(report, said):
    assert report["text_encoder"] == {"layers": 2, "published_layers": 50}
    assert "the text encoder is small: 2 layers where the published one runs 50" in said
    assert "random weights are noise" in said


def test_the_table_has_a_line_for_each_phase_and_the_whole(report, said):
    lines = said.splitlines()
    assert lines[0].strip() == "A render of 96x64, 39 frames, 3 steps on 1 rank, bf16, ulysses"
    for phase in Phase:
        assert f"{report['cold']['phases'][phase]:.2f} s" in next(line for line in lines if line.startswith(phase))
    assert f"{report['warm']['seconds']:.2f} s" in next(line for line in lines if line.startswith("all  "))


def test_latents_that_differ_are_seen():
    told = Timings(begin_s=0, text_s=0, prepare_s=0, step_s=(), aside_s=0, sound_s=0, first_segment_s=0, decode_s=0)
    reports = [RunnerReport(timings=told, provenance={}, latents_sha256={"video": bits}) for bits in "ab"]
    for first, second, same in ((*reports, False), (reports[0], reports[0], True)):
        outcome = make_outcome(first, second)
        assert outcome.is_reproduced is same


def make_outcome(first, second):
    cold, warm = (Rendered(1.0, {}, 0.5, 1, 1, {}, report) for report in (first, second))
    return Outcome(make_request(SMALL, STEPS), 2, None, None, cold, warm, 0.0)


def test_what_no_client_may_ask_for_is_refused_by_its_field():
    with pytest.raises(ConfigError, match="no request may have width 8192"):
        make_request(Geometry(8192, 64, 39), STEPS)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--tiny", "--model", "x"), "--model has its own sizes"),
        (("--tiny", "--layers", 2), "--tiny has its own sizes"),
        (("--precision", "fp16"), "fp16 overflows"),
        (("--model", "gone"), "gone is not the root of a checkpoint"),
        (("--tiny", "--mode", "pipeline"), "--mode 'pipeline' is not one of ulysses, tensor"),
        (("--tiny", "--shape", "96x64x40"), "40"),
        (("--tiny", "--shape", "8192x64x39"), "no request may have width 8192"),
        (("--tiny", "--world-size", 10), "9 attention heads"),
        (("--tiny", "--report", "gone/x.json"), "gone is no folder"),
    ],
    ids=str,
)
def test_what_cannot_be_rendered_is_told(folder, said, flags, text):
    assert text in bench("end-to-end", "--folder", folder, "--device", "cpu", *flags, code=2)


def test_a_checkpoint_that_lacks_a_part_is_refused_before_a_rank_is_started(tiny_copy):
    (tiny_copy / "FL2VA" / "audio_vae" / "model.safetensors").unlink()
    said = bench("end-to-end", "--model", tiny_copy, "--device", "cpu", code=2)
    assert "audio_vae holds no *.safetensors" in said
