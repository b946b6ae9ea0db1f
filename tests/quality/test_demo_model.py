"""The shipped model draws what captions say, in each way that the farm renders: all that is judged with `--full`.

What that comes to is in benchmarks/reports/demo-model.json, which tests/quality/report.py writes.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import h3render
from h3.checkpoint import DenoiserFiles
from h3.demo_model import CHECKSUMS, ROOT, check, write_demo_model
from h3.errors import CheckpointError, ConfigError
from h3.model_folder import PARTITION, ModelFolder
from h3.precision import Precision
from tests.in_process import call
from tests.quality.report import judge_way, places_of
from tests.quality.ways import EVERYWHERE
from tools.demo_model.scenes import WORDS
from tools.demo_model.training_report import TERMS
from tools.train_demo_model import PLANS
from worker.demo import KNOWN

REPORT = Path(__file__).parents[2] / "benchmarks" / "reports" / "demo-model.json"
MOST_BYTES = 24_000_000
ASKED = ("colour", "shape", "direction", "pitch", "side")
# Of all that are asked for. Four bits round the corners off small squares; the other ways are judged by fewer prompts.
LEAST_RIGHT, LEAST_RIGHT_ELSE = {"bf16": 0.9, "fp8": 0.9, "nvfp4": 0.8}, 0.85
LEAST_PSNR_DB = 25.0  # of a given first frame
# Which prompts, in a reduced run: ones that are right in every way.
REDUCED = {
    "bf16": range(10, 12),
    "nvfp4": range(11, 12),
    "interrupted": range(5, 6),
    "first frame": range(3, 4),
}


def pytest_generate_tests(metafunc):
    if "way" in metafunc.fixturenames:
        metafunc.parametrize("way", EVERYWHERE if metafunc.config.getoption("full") else REDUCED)


@pytest.mark.slow
def test_it_draws_what_captions_say(way, full):
    outcome = judge_way(way, ROOT, torch.device("cpu"), places_of(way) if full else REDUCED[way])
    if full:
        require_right(way, outcome)
    else:
        assert outcome["wrong"] == {}
    if way == "first frame":
        assert outcome["first_frame_psnr_db"]["least"] > LEAST_PSNR_DB


def require_right(way, outcome):
    least, right = LEAST_RIGHT.get(way, LEAST_RIGHT_ELSE), {aspect: outcome["right"][aspect] for aspect in ASKED}
    assert {aspect: told for aspect, told in right.items() if told["right"] < least * told["asked"]} == {}


def test_its_report_is_of_what_is_shipped_and_good_enough():
    report = json.loads(REPORT.read_text())
    assert report["model"] == ModelFolder.below(ROOT).digest()
    assert {*EVERYWHERE, "fp8"} == report["ways"].keys()
    for way, outcome in report["ways"].items():
        assert outcome["prompts"] == len(places_of(way))
        require_right(way, outcome)


def test_it_is_small_and_every_file_has_its_checksum():
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / PARTITION).rglob("*") if path.is_file()}
    assert {line.split()[1] for line in (ROOT / CHECKSUMS).read_text().splitlines()} == files
    assert sum(path.stat().st_size for path in ROOT.rglob("*") if path.suffix != ".pyc") <= MOST_BYTES
    check(ROOT)


def test_a_damaged_file_is_named(tmp_path):
    damaged = shutil.copytree(ROOT, tmp_path / "model")
    weights = damaged / PARTITION / "audio_vae" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=r"audio_vae/model.safetensors is not .* install h3render again"):
        check(damaged)


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.NVFP4])
def test_the_command_writes_a_whole_checkpoint(tmp_path, precision):
    done = call(h3render.app, "checkpoint", "demo", str(tmp_path / "model"), "--precision", precision)
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'model'}\n")
    folder = ModelFolder.below(tmp_path / "model")
    folder.check()
    assert DenoiserFiles.open(folder.transformer).precision is precision
    with pytest.raises(CheckpointError, match="holds a checkpoint"):
        write_demo_model(tmp_path / "model")


def test_another_precision_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(ConfigError, match="is there in bf16 and nvfp4, not in fp8"):
        write_demo_model(tmp_path, Precision.FP8)


def test_the_demo_tells_every_word_that_it_knows():
    told = KNOWN.replace(",", " ").replace(";", " ").split()
    assert {word for name in ("shape", "colour", "direction", "pitch", "side") for word in WORDS[name]} <= set(told)


def test_every_training_has_names_for_its_losses():
    assert TERMS.keys() == PLANS.keys()
