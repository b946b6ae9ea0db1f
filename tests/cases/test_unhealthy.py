"""Fleets that do not start: again and again, and for a while."""

import re

import pytest

from jobs import events
from jobs.workers import WorkerState, read_workers
from tests.cases.runners import SICKNESS, Script
from tests.waiting import eventually

EXIT_UNHEALTHY = 78


@pytest.mark.timeout(180)  # five fleets
def test_case_6_a_worker_whose_card_stays_sick_leaves_its_jobs_to_others_and_says_why(farm, watched, full):
    sick = farm.start_ready("--name", "sick", ranks=2 if full else 1, **{SICKNESS: str(farm.folder / "sickness")})
    jobs = [farm.client.submit(Script(name=f"job {i}", has_sticky_error=i == 3).request()) for i in range(1, 11)]
    [lost] = farm.await_event(jobs[2].id, events.AttemptLost)
    assert "CUDA error: an illegal memory access" in lost.reason
    assert lost.charge == "fatal"
    farm.start_ready("--name", "sound", "--queue", "default")
    for job in jobs:
        job.wait(timeout_s=60)
        farm.check_result(job.id)
    assert sick.process.wait(60) == EXIT_UNHEALTHY

    began = [[event.worker.rpartition("-")[0] for event in farm.events_of(job.id, events.Started)] for job in jobs]
    assert began == 2 * [["sick"]] + [["sick", "sound"]] + 7 * [["sound"]]
    [told] = [worker for worker in farm.list_workers() if worker.name == "sick"]
    assert told.state is WorkerState.UNHEALTHY
    summary, *_ = told.reason.splitlines()
    assert re.match(r"the fleet did not start 3 times in a row: rank 0 .*CUDA error: an illegal memory", summary)
    assert sick.log.read_text().count("starting the fleet") == 4


def test_a_worker_whose_fleet_starts_at_the_third_try_takes_its_jobs_then(farm, watched):
    """What the self-test of a rank finds is said, and no job is taken by a fleet that does not pass it."""
    sickness = farm.folder / "sickness"
    sickness.write_text("wrong sums\nwrong products\n")
    job = farm.client.submit(Script().request())
    worker = farm.start(**{SICKNESS: str(sickness)})
    seen = set()

    def is_ready():
        seen.update((record.state, record.pid) for record in read_workers(farm.redis))
        return worker.is_ready()

    eventually(is_ready, timeout_s=60)
    assert job.wait(timeout_s=30).attempt == 1
    log = worker.log.read_text()
    assert "a sum over 1 ranks, on rank 0 gives 2 to 2, not 1" in log
    assert "a product on cpu gives 32641 to 32641, not 32640" in log
    assert seen <= {
        (state, worker.process.pid) for state in (WorkerState.STARTING, WorkerState.READY, WorkerState.BUSY)
    }
    [record] = read_workers(farm.redis)
    assert record.restarts == 2
    assert record.pid == worker.process.pid


def test_a_worker_that_is_stopped_between_two_tries_to_start_its_fleet_leaves(farm):
    """It hears of it, though it is about to become a new process."""
    (farm.folder / "sickness").write_text("sticky error...")
    worker = farm.start(**{SICKNESS: str(farm.folder / "sickness")})
    eventually(worker.rank_pids, timeout_s=60)
    eventually(lambda: not worker.rank_pids(), timeout_s=60)  # a second before the next try
    worker.stop_as_docker_does()
    assert worker.log.read_text().count("starting the fleet") == 1
    assert farm.list_workers() == []
