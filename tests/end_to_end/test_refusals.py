"""What bad input gets: a clear message, exit code 2, no traceback, and nothing queued or rendered.

Of each kind one goes through the real command, the others through the same in this process.
"""

import shutil

import pytest

import h3render
from h3.model_folder import ModelFolder
from tests.end_to_end.conftest import run
from tests.in_process import call

NOBODY = "redis://127.0.0.1:1/0"


def refused(*arguments: str, **environment: str) -> str:
    """What it says."""
    done = call(h3render.app, *arguments, COLUMNS="200", **environment)
    assert done.exit_code == 2, done.output
    return done.stderr


def really_refused(*arguments: str, **environment: str) -> str:
    done = run(*arguments, **environment)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--width", "100", "--height", "64"], "width 100 is not a multiple of 32; the nearest are 96 and 128"),
        (["a", "--frames", "40"], "frames 40 is not 17n + 5 between 22 and 362; nearest: 39 and 56"),
        (["a", "--steps", "0"], "steps 0 is too small; nearest: 1"),
        (["   "], "prompt '   ' is empty; say what should be seen and heard"),
        (["a", "--stepz", "3"], "--stepz"),
    ],
)
def test_a_wrong_request_is_refused_before_it_is_queued(redis, redis_url, file_store_url, arguments, message):
    assert message in refused("submit", *arguments, "--url", redis_url, "--store", file_store_url)
    assert redis.keys() == []


def test_the_real_command_refuses_as_well(redis, redis_url, file_store_url):
    assert "steps 0 is too small" in really_refused("submit", "a", "--steps", "0", "--url", redis_url)
    assert redis.keys() == []
    worker = ("worker", "--url", redis_url, "--store", file_store_url)
    assert "h3render checkpoint demo DIR" in really_refused(*worker)


@pytest.mark.parametrize("command", [["submit", "a"], ["watch", "j"], ["status", "j"]])
def test_a_redis_that_does_not_answer_is_named(command):
    assert_nobody_is_named(refused(*command, "--url", NOBODY))


def test_a_worker_without_a_redis_tells_its_supervisor_to_try_again_later(checkpoint):
    """It may have been started before the server."""
    done = run("worker", "--url", NOBODY, H3_MODEL_PATH=str(checkpoint))
    assert done.returncode == 75
    assert_nobody_is_named(done.stderr)
    assert "Traceback" not in done.stderr


def assert_nobody_is_named(said: str) -> None:
    assert f"Redis at {NOBODY} does not answer" in said
    assert "REDIS_URL" in said


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("file:///proc/h3render", "/proc/h3render"),
        ("ftp://host/folder", "ftp://host/folder"),
        ("s3://no-such-bucket-here/prefix", "no-such-bucket-here"),
    ],
)
def test_a_store_that_cannot_be_written_stops_the_worker(redis_url, s3_environment, checkpoint, store, message):
    assert message in refused("worker", "--url", redis_url, "--store", store, "--checkpoint", str(checkpoint))


def test_a_damaged_checkpoint_is_named_by_file_and_tensor_before_a_rank_starts(
    redis_url, file_store_url, checkpoint, tmp_path
):
    damaged = shutil.copytree(checkpoint, tmp_path / "damaged")
    shard = sorted(ModelFolder.below(damaged).transformer.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])
    stderr = really_refused("worker", "--url", redis_url, "--store", file_store_url, "--checkpoint", str(damaged))
    assert f"{shard} is cut short in tensor " in stderr
    shard.unlink()
    stderr = refused("worker", "--url", redis_url, "--store", file_store_url, "--checkpoint", str(damaged))
    assert f"{shard} is missing, which holds tensor " in stderr
    assert f"{shard} is missing" in refused("checkpoint", "check", str(damaged))


def test_a_runner_that_cannot_be_loaded_is_named(redis_url, file_store_url, checkpoint):
    stderr = refused(
        *("worker", "--url", redis_url, "--store", file_store_url, "--checkpoint", str(checkpoint)),
        *("--runner", "nowhere:Runner"),
    )
    assert "H3_RUNNER nowhere:Runner cannot be loaded" in stderr


def test_more_ranks_than_heads_are_refused_before_a_rank_starts(redis_url, file_store_url, checkpoint):
    stderr = refused(
        *("worker", "--url", redis_url, "--store", file_store_url, "--checkpoint", str(checkpoint)),
        *("--ranks", "10", "--backend", "gloo"),
    )
    assert "9 attention heads cannot be split over 10 ranks: use at most 9 ranks" in stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--ranks", "0"], {}, "H3_WORLD_SIZE 0"),
        ([], {"H3_WORLD_SIZE": "two"}, "H3_WORLD_SIZE 'two'"),
        ([], {"H3_BACKEND": "mpi"}, "H3_BACKEND 'mpi'"),
        ([], {"H3_MODE": "pipeline"}, "H3_MODE 'pipeline': input should be 'auto', 'ulysses' or 'tensor'"),
        ([], {"H3_LOG_FORMAT": "yaml"}, "H3_LOG_FORMAT 'yaml'"),
        ([], {"H3_SPOOL_DIR": "/nowhere"}, "H3_SPOOL_DIR /nowhere"),
    ],
)
def test_a_wrong_setting_is_named_by_its_variable(
    redis_url, file_store_url, checkpoint, arguments, environment, message
):
    command = ["worker", "--url", redis_url, "--store", file_store_url, "--checkpoint", str(checkpoint)]
    assert message in refused(*command, *arguments, **environment)


def test_a_size_that_the_model_does_not_have_is_not_timed(checkpoint):
    told = refused("bench", "step", "--model", str(checkpoint), "--shape", "100x160x39")
    assert "100x160 pixels: both sides must be multiples of 32" in told


def test_a_tiny_checkpoint_is_not_written_over_another(checkpoint):
    assert f"{checkpoint} holds a checkpoint" in refused("checkpoint", "tiny", str(checkpoint))


def test_an_unknown_job_is_named(redis_url):
    assert "no job nonesuch" in refused("status", "nonesuch", "--url", redis_url)
