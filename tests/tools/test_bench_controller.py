"""`make bench-controller`, shortened. What it finds must hold; how fast it was is for a quiet machine to say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def bench(tmp_path):
    def run(*arguments: str) -> dict[str, Any]:
        report = tmp_path / "report.json"
        command = [sys.executable, "tools/bench_controller", "--cpu", *arguments, str(report)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode in (0, 1), done.stderr  # 1: a goal was missed
        assert report.exists(), done.stderr
        return json.loads(report.read_text())

    return run


def test_the_report_says_what_was_measured_where_and_whether_it_met_its_goal(bench):
    report = bench("--only", "empty-job", "--only", "unpicklable-kwarg")
    assert report["ranks"] == 2
    assert report["backend"] == "gloo"
    assert {"date", "devices", "torch", "python"} <= report.keys()
    assert report["command"].startswith("python tools/bench_controller --cpu --only empty-job")
    assert list(report["rows"]) == ["empty-job", "unpicklable-kwarg"]

    empty_job = report["rows"]["empty-job"]
    assert empty_job["goal"] == "<= 1 ms"
    assert empty_job["measured"]["n"] == 200
    assert 0 < empty_job["measured"]["p50"] <= empty_job["measured"]["p95"]
    assert empty_job["met"] == (empty_job["measured"]["p50"] <= 1)

    refusal = report["rows"]["unpicklable-kwarg"]
    assert refusal["claims"] == {"refused in the caller": True, "the fleet is unharmed": True}
    assert refusal["met"]


def test_a_short_soak_leaves_nothing_open(bench):
    soak = bench("--only", "soak", "--soak-jobs", "300")["rows"]["soak"]
    early, late = soak["details"]["early"], soak["details"]["late"]
    assert soak["details"]["jobs"] == 300
    assert soak["claims"]["every job is right"]
    assert early["descriptors"] == late["descriptors"]
    assert early["shared_memory"] == late["shared_memory"]
    assert len(early["rss_bytes"]) == 1 + 2  # the parent and its ranks
