"""The real model's ranks really desynchronised, and really killed, in mid-denoise.

The worker has as little shared memory as containers are given unless somebody has asked for more.
"""

import subprocess

import pytest
import torch

from tests.worker.restart_runners import Fault
from tests.worker.restarts import Setting, running_worker

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
pytestmark = pytest.mark.timeout(240)  # up to three fleets in one worker's life

LITTLE_BYTES = 64 << 20
LITTLE_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
REASONS = {Fault.DESYNC: "the fleet stalled: no step", Fault.DEATH: "rank 1"}
DEATH_SEEN_S = 2.0


def pytest_generate_tests(metafunc):
    if "fault" in metafunc.fixturenames:
        metafunc.parametrize("fault", Fault if metafunc.config.getoption("full") else [Fault.DESYNC])


@pytest.fixture(scope="module")
def launcher():
    """What starts a program with so little; nothing if this user may not mount."""
    told = subprocess.run([*LITTLE_SHM, "true"], capture_output=True, check=False)
    return () if told.returncode else LITTLE_SHM


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=[pytest.mark.gpu, needs_two])])
def restarts(request, need_redis, tiny_checkpoint, tmp_path_factory, launcher):
    """A worker that has rendered the job once, undisturbed."""
    setting = Setting(request.param)
    with running_worker(setting, tiny_checkpoint, tmp_path_factory.mktemp("worker"), launcher) as restarts:
        yield restarts


def test_the_model_is_rendered_on_two_ranks_with_64_mib_of_shared_memory(restarts, launcher):
    """It has been."""
    if not launcher:
        pytest.skip("this user may not mount")
    assert restarts.shared_memory_bytes() == {LITTLE_BYTES}


@pytest.mark.slow
def test_case_5_a_job_whose_fleet_breaks_goes_on_after_a_restart(restarts, fault):
    """Its ranks are one collective apart; with --full, one is killed, too."""
    restart = restarts.disturb(fault)
    assert restart.broken_claims() == []
    assert REASONS[fault] in restart.reason
    if fault is Fault.DEATH:
        assert restart.timeline.ended - restart.timeline.fault < DEATH_SEEN_S
