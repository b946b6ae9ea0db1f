import shutil
from pathlib import Path

import pytest
from PIL import Image
from redis import Redis

import h3render
from h3.contact_sheet import GAP
from jobs import embedded
from tests.docs.operations_page import typed
from tests.end_to_end.conftest import run
from tests.in_process import call
from tests.quality.judge import judge, wrong
from worker.demo import MODEL_NAME


@pytest.fixture
def user(need_redis, private_folder, tmp_path):
    """The environment of a user who has set nothing up; their embedded server ends with the test."""
    environment = {
        "H3_STATE_DIR": str(tmp_path / "state"),
        "H3_RUNTIME_DIR": str(private_folder),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "REDIS_URL": "",
        "H3_STORE_URL": "",
    }
    yield environment
    embedded.stop(state_folder=tmp_path / "state", runtime_folder=private_folder)


def test_the_demo_renders_a_prompt_and_ends_with_the_paths(user):
    real_job = call(h3render.app, "submit", "somebody's real job", **user).stdout.strip()
    prompt = "a large yellow square moves slowly down on a black background with a low tone on the right"
    done = run("demo", prompt, "--seed", "1", timeout_s=100, **user)
    assert done.returncode == 0, done.stderr
    paths = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[:5])
    assert set(paths) == {"video", "report", "playlist", "log", "sheet"}
    with Image.open(paths["sheet"]) as sheet:
        assert sheet.size == (4 * (256 + GAP) + GAP, 3 * (160 + GAP) + GAP)
    assert wrong(prompt, judge(Path(paths["video"]))) == {}
    assert "small" in done.stdout.splitlines()[5]
    for phase in ("text: ", "denoise: 16/16", "decode: clip 2"):
        assert phase in done.stderr

    # The small model takes nobody's real job, and leaves no queue behind.
    assert call(h3render.app, "status", real_job, **user).stdout.startswith(f"{real_job} waiting: no worker is alive")
    with Redis.from_url(embedded.socket_url(Path(user["H3_RUNTIME_DIR"]) / "redis.sock")) as redis:
        assert redis.keys("rq:queue:*") == [b"rq:queue:default"]

    server = call(h3render.app, "redis", "status", **user)
    assert "pid" in server.stdout  # the queue outlives the command
    assert run("redis", "stop", **user).stdout == "stopped\n"
    assert call(h3render.app, "redis", "stop", **user).stdout == "not running\n"


def test_a_worker_that_cannot_start_ends_the_demo_with_the_reason(user, checkpoint, tmp_path):
    damaged = shutil.copytree(checkpoint, tmp_path / "cache" / "h3render" / MODEL_NAME.format("bf16"))
    shutil.rmtree(damaged / "FL2VA" / "audio_vae")
    done = run("demo", **user)
    assert done.returncode == 2
    assert "the worker ended with exit code 2" in done.stderr
    assert "audio_vae" in done.stderr


def test_the_doctor_examines_this_machine(user, checkpoint):
    done = run(*typed(0, checkpoint), **user)
    lines = done.stdout.splitlines()
    verdicts = {line[6:23].strip(): line[:5].strip() for line in lines if line[:5].strip()}
    assert list(verdicts) == [
        *(
            "python",
            "torch",
            "gpus",
            "redis",
            "redis eviction",
            "redis rights",
            "store",
            "disk for outputs",
            "shared memory",
        )
    ]
    assert {
        verdicts[subject] for subject in ("python", "torch", "gpus", "redis", "redis eviction", "redis rights", "store")
    } == {"ok"}


def test_the_doctor_names_what_fails_and_the_remedy(user):
    done = call(h3render.app, "doctor", "--store", "file:///proc/h3render", **user)
    assert done.exit_code == 1
    assert "FAIL  store" in done.stdout


def test_the_doctor_tells_where_a_models_parts_stay_on_a_rank_in_a_mode(user, checkpoint):
    told = call(h3render.app, *typed(1, checkpoint), "--mode", "tensor", H3_BACKEND="gloo", **user).stdout
    assert "can be served by 2 ranks in mode tensor" in told
    assert "blocks: 6.5 MiB" in told  # of 12
