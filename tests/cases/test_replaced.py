"""Fleets that are replaced while their worker goes on: the same process, other ranks. One worker serves all tests."""

import pytest

from jobs import events
from jobs.workers import WorkerState, read_workers
from tests.cases.conftest import is_rank
from tests.cases.runners import Script
from tests.waiting import eventually

LEAK_BYTES = 64 << 20


@pytest.fixture
def worker(lasting_farm):
    return lasting_farm.keep_ready("--name", "gpu-1", ranks=2, H3_RSS_GROWTH_BYTES=str(LEAK_BYTES))


@pytest.fixture
def another_fleet(lasting_farm, worker, watched):
    """Whatever happens, other ranks run the next job, in the same worker."""
    ranks, starts = worker.rank_pids(), worker.starts
    yield
    eventually(lambda: worker.starts == starts + 1, timeout_s=60)
    job = lasting_farm.client.submit(Script(name="next").request())
    assert job.wait(timeout_s=30).attempt == 1
    assert worker.process.poll() is None
    assert not set(worker.rank_pids()) & set(ranks)
    assert [pid for pid in ranks if is_rank(pid)] == []


def test_a_fleet_of_which_one_rank_has_refused_what_the_others_did_is_replaced_before_the_next_job(
    lasting_farm, another_fleet, tmp_path
):
    job = lasting_farm.client.submit(Script(name="torn", refuse_until=str(tmp_path / "refused")).request())
    behind = lasting_farm.client.submit(Script(name="behind").request())
    assert job.wait(timeout_s=60).attempt == 2
    [lost] = lasting_farm.events_of(job.id, events.AttemptLost)
    assert (lost.charge, "AsymmetricRunnerError" in lost.reason) == ("fatal", True)
    assert behind.wait(timeout_s=30).attempt == 1
    assert lasting_farm.rendered("behind step 1") == ["behind step 1"]


def test_a_fleet_that_grows_from_job_to_job_is_replaced_at_no_jobs_cost(lasting_farm, worker, another_fleet):
    jobs = [lasting_farm.client.submit(Script(name=f"leak {i}", leak_bytes=LEAK_BYTES).request()) for i in range(3)]
    assert [job.wait(timeout_s=60).attempt for job in jobs] == [1, 1, 1]
    assert "MiB more than after the first render of this size" in worker.log.read_text()


def test_a_size_for_which_a_rank_had_no_memory_is_left_to_others(lasting_farm, worker, another_fleet):
    large = lasting_farm.client.submit(Script(name="large", runs_out_of_memory=True).request(width=96))
    [lost] = lasting_farm.await_event(large.id, events.AttemptLost)
    assert (lost.charge, "OutOfMemoryError" in lost.reason) == ("fatal", True)
    # Its record of before the loss says ready, too.
    offered = eventually(
        lambda: [
            record.offer.most_pixels
            for record in read_workers(lasting_farm.redis)
            if record.state is WorkerState.READY and record.offer.most_pixels is not None
        ],
        timeout_s=60,
    )
    assert offered == [96 * 64 * 22 - 1]
    assert large.status().state == "waiting"
    assert large.status().waiting_for == "waiting: no worker with memory for 96x64, 22 frames"
    small = lasting_farm.client.submit(Script(name="small").request())
    assert small.wait(timeout_s=30).attempt == 1  # though it came later
    assert large.cancel()
