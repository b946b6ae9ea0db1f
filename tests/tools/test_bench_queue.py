"""`make bench-queue`, shortened. What it finds must hold; how fast it was is for a quiet machine to say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.in_process import call
from tools.bench_queue.__main__ import main

REPOSITORY = Path(__file__).parents[2]
SHORT = ("--enqueue-jobs", "200", "--empty-jobs", "3", "--render-s", "1", "--idle-s", "1")
FEW = ("--follow-s", "0.5", "--records", "5", "--many-jobs", "300")
WITH_WORKER = {"enqueue", "busy-calls", "idle-calls"}
CLIENTS = {"followers", "record-memory", "submit-many", "batch-file", "status", "status-queued", "status-running"}


app = typer.Typer()
app.command()(main)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/bench_queue", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_report_says_what_the_farm_costs_with_each_store_and_whether_that_met_the_goals(
    need_redis, s3_store_url, tmp_path, full
):
    """A second store is a second worker, and one more fleet alone; a second rank is one in each of these."""
    stores = ("file", "s3") if full else ("file",)
    done = bench(
        *SHORT, *FEW, *(("--store", s3_store_url) if full else ("--ranks", "1")), str(tmp_path / "report.json")
    )
    report = json.loads((tmp_path / "report.json").read_text())
    rows = report["rows"]
    assert {"date", "devices", "torch", "python", "command", "redis"} <= report.keys()
    with_stores = {f"{row}-{store}" for row in ("empty-job", "render", "render-burst") for store in stores}
    assert set(rows) == with_stores | WITH_WORKER | CLIENTS
    assert not [row["error"] for row in rows.values() if "error" in row]
    assert all(all(row["claims"].values()) for row in rows.values())
    assert done.returncode == (0 if all(row["met"] for row in rows.values()) else 1)

    assert rows["enqueue"]["goal"] == ">= 1,000 jobs/s"
    assert rows["empty-job-file"]["measured"]["n"] == 3
    assert 0 < rows["empty-job-file"]["measured"]["p50"] <= rows["empty-job-file"]["measured"]["p95"]
    for store in stores:
        render = rows[f"render-{store}"]
        assert render["goal"] == "<= 1 %"
        assert render["met"] == (render["measured"]["value"] <= 1)
        assert render["details"]["own_s"] >= 1
    assert rows["busy-calls"]["details"]["calls_per_s"]["xadd"] > 0
    assert rows["idle-calls"]["goal"] == ""
    assert "submits of one client" in done.stdout

    followers = rows["followers"]
    assert followers["goal"] == "p95 <= 100 ms"
    assert followers["met"] == (followers["measured"]["p95"] <= 100)
    assert followers["measured"]["n"] == followers["details"]["followers"] * 5
    assert followers["measured"]["p95"] <= followers["details"]["max_ms"] + 0.01
    assert rows["record-memory"]["details"]["events_a_job"] == 98
    assert rows["batch-file"]["details"]["submitted_again_s"] > 0
    assert rows["status"]["measured"]["n"] == 200


def test_a_row_that_is_not_there_is_named(tmp_path):
    done = call(app, "--only", "speed", tmp_path / "report.json")
    assert done.exit_code == 2
    assert "speed; there are enqueue, empty-job" in done.stderr
    assert not (tmp_path / "report.json").exists()
