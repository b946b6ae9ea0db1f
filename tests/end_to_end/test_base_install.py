"""A venv with what a web backend installs, and nothing else: it submits and follows there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.client import Client
from jobs.store import open_store
from tests.docs.backends import PAGE, running_fastapi
from tests.docs.pages import take
from tests.docs.renders import VIDEO, finish, take_job
from tests.jobs.leasing import STEP

ROOT = Path(__file__).parent.parent.parent
INSTALL = take(PAGE, "install").removeprefix("$ pip install ").split()
NEVER = {"torch", "boto3", "botocore", "numpy", "diffusers", "transformers", "pillow", "av", "cloudpickle"}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Of the venv, after the page's `pip install`, with this checkout as h3render."""
    folder = tmp_path_factory.mktemp("base")
    source, venv = copy_source(folder / "source"), folder / "venv"
    # With this venv's pip: to install another one there takes longer than all the rest.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = [str(source) if name == "h3render" else name for name in INSTALL]
    pip(venv, "install", "--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt"), *packages)
    return venv / "bin" / "python"


def copy_source(target):
    """What a build is made of: it must not leave anything in the checkout, nor find what an earlier one has left."""
    for name in ("jobs", "worker", "h3", "infra"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("h3render.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target


def pip(venv, *arguments):
    command = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(python, code):
    """What it prints, with nothing of the environment or of this folder on its path."""
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_it_brings_no_torch_and_no_boto3(python):
    installed = {package["name"].lower() for package in json.loads(pip(python.parent.parent, "list", "--format=json"))}
    assert {"h3render", "fastapi", "redis"} <= installed
    assert installed & NEVER == set()
    found = "from importlib.util import find_spec; print([name for name in {!r} if find_spec(name)])"
    assert ask(python, found.format(sorted(NEVER))) == "[]"


def test_every_file_of_the_client_is_there_and_the_command_runs(python):
    folder = Path(ask(python, "import jobs; print(jobs.__path__[0])"))
    assert folder.is_relative_to(python.parent.parent)
    expected = {path.name for path in (ROOT / "jobs").iterdir() if path.is_file()}
    assert expected - {path.name for path in folder.iterdir()} == set()
    done = subprocess.run([python.parent / "h3render", "schema"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["title"] == "h3render request"


def test_a_backend_submits_and_follows_there(python, redis, redis_url, file_store_url, tmp_path):
    with running_fastapi(tmp_path, {"REDIS_URL": redis_url, "PYTHONPATH": ""}, str(python)) as backend:
        job_id = backend.submit({"prompt": "a red kite", "seconds": 1}, Idempotency_Key="order 7")
        with backend.follow(job_id) as stream:
            told = stream.read(1)
            lease = take_job(redis, job_id)
            lease.tell(STEP)
            finish(redis, lease, open_store(file_store_url), file_store_url)
            told += stream
        assert [each.event["kind"] for each in told] == ["queued", "started", "step_done", "finished"]
        assert [each.id for each in told] == [event.id for event in Client(redis).job(job_id).news()]
        video = backend.ask("GET", f"/renders/{job_id}/video").headers["Location"]
        assert Path(video.removeprefix("file://")).read_bytes() == VIDEO
