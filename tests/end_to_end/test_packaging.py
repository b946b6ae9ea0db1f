"""A web backend installs the queue's client alone: no torch, no boto3, no model libraries."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "boto3", "botocore", "diffusers", "transformers", "safetensors", "av", "numpy", "PIL", "cloudpickle")
WITHOUT_HEAVY = f"""
import sys
sys.modules.update(dict.fromkeys({HEAVY}))  # importing any of them raises ModuleNotFoundError
import h3render
h3render.main()
"""


def run_without_heavy(*arguments):
    command = [sys.executable, "-c", WITHOUT_HEAVY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_submit_and_status_need_no_gpu_stack(redis_url, file_store_url):
    submitted = run_without_heavy("submit", "a red kite", "--url", redis_url, "--store", file_store_url)
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    assert "1344x768, 124 frames, 50 steps, seed " in submitted.stderr  # the reply says to what it snapped
    assert run_without_heavy("status", job_id, "--url", redis_url).stdout.startswith(f"{job_id} waiting")
    assert job_id in run_without_heavy("list", "--url", redis_url).stdout


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["worker"], "h3"),
        (["checkpoint", "tiny", "unused"], "h3"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(arguments, extra):
    done = run_without_heavy(*arguments)
    assert done.returncode == 2
    assert f"pip install 'h3render[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
