"""The blocks of docs/fleet.md: its commands against the local server and a real Redis, on a night without a job.

A night with jobs, and pods that render them, is tests/end_to_end/test_rented_night.py.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from infra.given_files import read_env_file
from tests.docs.pages import take
from tests.infra.runpod.clock import WallClock
from tests.infra.runpod.server import running_runpod
from tests.servers import running_redis

ROOT = Path(__file__).parents[2]
ENV = take("fleet.md", "env")
IMAGE, LOOK, NIGHT, WATCH, SWEEP = (
    take("fleet.md", name).splitlines() for name in ("image", "look", "night", "watch", "sweep")
)


def test_the_image_is_built_from_a_file_that_is_there():
    build, push = map(shlex.split, IMAGE)
    assert (ROOT / build[build.index("--file") + 1]).is_file()
    assert build[-1] == "."
    assert push[-1] == build[build.index("--tag") + 1]


@pytest.fixture
def runpod():
    with running_runpod(clock=WallClock()) as server:
        yield server


@pytest.fixture
def run(runpod, need_redis, tmp_path):
    """One command of the page, in a folder with the files that it names."""
    env_file = tmp_path / "pods.env"
    env_file.touch(mode=0o600)
    env_file.write_text(ENV)
    assert len(read_env_file(env_file)) == len(ENV.splitlines())
    (tmp_path / "shots.csv").write_text("prompt\na red kite\n")
    with running_redis(append_only=True) as redis:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        of_test = {
            "PATH": path,
            "REDIS_URL": redis.url,
            "H3_PODS_LOOK_S": "0.1",
            "H3_STORE_URL": f"file://{tmp_path}/s",
        }
        environment = os.environ | of_test | {"H3_PODS_LEDGER": str(tmp_path / "pods.jsonl"), **runpod.environment}
        environment |= read_exports(LOOK) | runpod.environment | of_test

        def run(line: str) -> str:
            done = subprocess.run(
                shlex.split(line, comments=True),
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout + done.stderr

        yield run


def read_exports(lines: list[str]) -> dict[str, str]:
    words = [word for line in lines if line.startswith("export ") for word in shlex.split(line)[1:]]
    return dict(word.split("=", 1) for word in words)


def test_the_commands_of_a_night(run, runpod):
    for line in LOOK:
        if not line.startswith("export "):
            run(line)
    submit, up, report = NIGHT
    assert "no pod is left" in run(up)  # before there is a job: nobody would render it here
    run(submit)
    status, workers, _ = WATCH  # the last follows until the batch is done
    assert "no pod" in run(status)
    run(workers)
    run(report)
    assert "nothing to end" in run(SWEEP[0])
    assert runpod.changes() == []
    assert runpod.outside() == []
