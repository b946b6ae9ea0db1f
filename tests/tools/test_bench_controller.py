"""`make bench-controller`, shortened. What it finds must hold; how fast it was is for a quiet machine to say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("bench") / "report.json"
    rows = ("--only", "empty-job", "--only", "unpicklable-kwarg", "--only", "soak", "--soak-jobs", "300")
    command = [sys.executable, "tools/bench_controller", "--cpu", *rows, str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert path.exists(), done.stderr
    report = json.loads(path.read_text())
    assert done.returncode == (0 if all(row["met"] for row in report["rows"].values()) else 1), done.stderr
    return report


def test_the_report_says_what_was_measured_where_and_whether_it_met_its_goal(report):
    assert report["ranks"] == 2
    assert report["backend"] == "gloo"
    assert {"date", "devices", "torch", "python"} <= report.keys()
    assert report["command"].startswith("python tools/bench_controller --cpu --only empty-job")
    assert list(report["rows"]) == ["empty-job", "unpicklable-kwarg", "soak"]

    empty_job = report["rows"]["empty-job"]
    assert empty_job["goal"] == "<= 1 ms"
    assert empty_job["measured"]["n"] == 200
    assert 0 < empty_job["measured"]["p50"] <= empty_job["measured"]["p95"]
    assert empty_job["met"] == (empty_job["measured"]["p50"] <= 1)

    refusal = report["rows"]["unpicklable-kwarg"]
    assert refusal["claims"] == {"refused in the caller": True, "the fleet is unharmed": True}
    assert refusal["met"]


def test_a_short_soak_leaves_nothing_open(report):
    soak = report["rows"]["soak"]
    early, late = soak["details"]["early"], soak["details"]["late"]
    assert soak["details"]["jobs"] == 300
    assert soak["claims"]["every job is right"]
    assert early["descriptors"] == late["descriptors"]
    assert early["shared_memory"] == late["shared_memory"]
    assert len(early["rss_bytes"]) == 1 + 2  # the parent and its ranks
