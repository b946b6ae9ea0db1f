"""The real model's ranks really desynchronised, and really killed, in mid-denoise."""

import pytest
import torch

from tests.worker.restart_runners import Fault
from tests.worker.restarts import Setting, running_worker

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
pytestmark = pytest.mark.timeout(240)  # three fleets in one worker's life


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=[pytest.mark.gpu, needs_two])])
def restarts(request, need_redis, tiny_checkpoint, tmp_path_factory):
    """A worker that has rendered the job once, undisturbed."""
    with running_worker(Setting(request.param), tiny_checkpoint, tmp_path_factory.mktemp("worker")) as restarts:
        yield restarts


def test_case_5_a_job_whose_ranks_are_one_collective_apart_goes_on_after_a_restart(restarts):
    restart = restarts.disturb(Fault.DESYNC)
    assert restart.broken_claims() == []
    assert "the fleet stalled: no step" in restart.reason


def test_case_5_a_job_whose_rank_is_killed_goes_on_after_a_restart(restarts):
    restart = restarts.disturb(Fault.DEATH)
    assert restart.broken_claims() == []
    assert "rank 1" in restart.reason
    assert restart.timeline.ended - restart.timeline.fault < 2
