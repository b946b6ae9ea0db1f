"""`h3render bench quality`: distances that hold on any device; and what a distance is."""

import json
import math

import pytest
import torch

from h3.bench.quality import Distance
from tests.h3.bench.command import run


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    report = tmp_path_factory.mktemp("bench") / "quality.json"
    done = run("quality", "--tiny", "--shape", "64x32x22", "--steps", 2, "--precision", "fp8", "--report", report)
    return json.loads(report.read_text()), done


def test_less_exact_arithmetic_is_farther_from_fp32(bench):
    report, _ = bench
    results = {result["name"]: result for result in report["results"]}
    assert list(results) == ["fp32, eager", "bf16, eager", "fp8"]
    for modality in ("video", "audio"):
        for what in ("evaluation", "final"):
            bf16, fp8 = (results[name][what][modality]["relative_l2"] for name in ("bf16, eager", "fp8"))
            assert 0 < bf16 < 2e-2
            assert 3 * bf16 < fp8 < 0.3
        assert results["fp8"]["final"][modality]["psnr_db"] < results["bf16, eager"]["final"][modality]["psnr_db"]


def test_every_run_was_made_twice_with_the_same_bits(bench):
    report, done = bench
    assert all(result["is_repeated"] for result in report["results"])
    assert "NO" not in done.stdout.split()
    assert "Distance from fp32, 64x32, 22 frames, 2 steps" in done.stdout


def test_a_distance_is_relative_to_the_right_values_and_their_range():
    right = torch.tensor([0.0, 3.0, 4.0])
    found = Distance.of(right + torch.tensor([0.0, 0.0, 0.5]), right)
    assert found.relative_l2 == pytest.approx(0.1)
    assert found.psnr_db == pytest.approx(10 * math.log10(16 / (0.25 / 3)))
    assert Distance.of(right, right) == Distance(0.0, math.inf)
