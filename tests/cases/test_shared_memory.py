"""The little shared memory that containers are given: 64 MiB in /dev/shm, unless somebody has asked for more."""

import subprocess

import pytest

SMALL_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")


@pytest.fixture
def small_shm():
    """What starts a program with so much of it."""
    told = subprocess.run([*SMALL_SHM, "df", "-k", "/dev/shm"], capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip(f"this user may not mount: {told.stderr.strip()}")
    assert "65536" in told.stdout
    return SMALL_SHM


@pytest.mark.timeout(180)
def test_the_model_is_rendered_on_two_ranks_with_64_mib_of_shared_memory(farm, watched, small_shm, tiny_checkpoint):
    model = ("--checkpoint", str(tiny_checkpoint), "--runner", "h3.runner:H3Runner")
    farm.start_ready(*model, ranks=2, launcher=small_shm)
    job = farm.client.submit({"prompt": "a red kite", "width": 64, "height": 64, "frames": 22, "steps": 2, "seed": 1})
    assert job.wait(timeout_s=90).attempt == 1
    farm.check_result(job.id)
