"""`make chaos`, shortened and without a model: a farm is disturbed, and what it ends with is checked."""

import json
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
SHORT = ("--light", "--jobs", "14", "--workers", "2", "--lease-s", "2", "--gap-s", "1.0", "--faults", "6")
ONE_WORKER = ("--light", "--workers", "1", "--jobs", "20", "--gap-s", "60")
KINDS = {"kill-worker", "kill-rank", "kill-redis", "kill-store", "stop-worker", "end-worker"}


@pytest.fixture
def command(need_redis, s3_server, tmp_path):
    """The fixtures only say whether there are such servers: a run has its own."""
    return [sys.executable, "tools/chaos", "--folder", str(tmp_path / "run")]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_farm_whose_parts_are_killed_loses_doubles_and_spoils_nothing(command, tmp_path, full):
    path = tmp_path / "report.json"
    subprocess.run(
        [*command, *(() if full else SHORT), str(path)], cwd=REPOSITORY, check=False, timeout=3500 if full else 170
    )
    report = json.loads(path.read_text())
    assert report["findings"] == {"lost": [], "double": [], "wrong": []}
    assert report["passed"]
    assert report["results"]["jobs"] == (200 if full else 14)
    assert report["results"]["finished"] + report["results"]["dead"] == report["results"]["jobs"]
    assert set(report["faults"]) == KINDS
    assert report["attempts"]["lost"]  # or nothing was disturbed
    assert {"date", "devices", "torch", "command", "storm"} <= report.keys()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_all_that_a_run_has_started_ends_with_it_however_that_ends(command, signum):
    with subprocess.Popen([*command, *ONE_WORKER], cwd=REPOSITORY) as run:
        try:
            started = eventually(lambda: has_fleet(found := descendants(run.pid)) and found, timeout_s=90)
        finally:
            run.send_signal(signum)
    eventually(lambda: not [pid for pid in started if command_of(pid) == started[pid]], timeout_s=20)
    left = {Path(folder) for line in started.values() for folder in re.findall(r"/tmp/h3-\w+", line)}
    assert left
    if signum == signal.SIGTERM:
        assert not [folder for folder in left if folder.exists()]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)


def has_fleet(processes: dict[int, str]) -> bool:
    return any("spawn_main" in line for line in processes.values())


def descendants(pid: int) -> dict[int, str]:
    """Command lines by pid."""
    found: dict[int, str] = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found |= {child: command_of(child)} | descendants(child)
    return found


def command_of(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""
