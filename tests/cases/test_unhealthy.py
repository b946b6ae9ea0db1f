"""Fleets that do not start: for a while, and again and again."""

import re

import pytest

from jobs import events
from jobs.workers import WorkerState, read_workers
from tests.cases.runners import SICKNESS, Script
from tests.waiting import eventually

EXIT_UNHEALTHY = 78
WRONG_SUM = {  # of the last rank; with --full there are two
    False: "a sum over 1 ranks, on rank 0 gives 2 to 2, not 1",
    True: "a sum over 2 ranks, on rank 1 gives 4 to 4, not 3",
}


@pytest.fixture
def worker(lasting_farm, full):
    """One whose card may be sick. It serves the tests until it is so for ever."""
    sickness = lasting_farm.folder / "sickness"
    if not lasting_farm.workers:
        sickness.write_text("wrong sums\nwrong products\n" if full else "wrong sums\n")
        lasting_farm.start("--name", "sick", ranks=2 if full else 1, **{SICKNESS: str(sickness)})
    return lasting_farm.workers[0]


@pytest.mark.slow
@pytest.mark.timeout(180)  # up to three fleets
def test_a_worker_whose_fleet_starts_after_a_while_takes_its_jobs_then(lasting_farm, watched, full, worker):
    """What the self-test of a rank finds is said, and no job is taken by a fleet that does not pass it."""
    job = lasting_farm.client.submit(Script().request())
    seen = set()

    def is_ready():
        seen.update((record.state, record.pid) for record in read_workers(lasting_farm.redis))
        return worker.is_ready()

    eventually(is_ready, timeout_s=90, interval_s=0.05)
    assert job.wait(timeout_s=30).attempt == 1
    log = worker.log.read_text()
    assert WRONG_SUM[full] in log
    assert ("a product on cpu gives 32641 to 32641, not 32640" in log) is full
    assert seen <= {
        (state, worker.process.pid) for state in (WorkerState.STARTING, WorkerState.READY, WorkerState.BUSY)
    }
    [record] = read_workers(lasting_farm.redis)
    assert record.restarts == (2 if full else 1)
    assert record.pid == worker.process.pid


@pytest.mark.timeout(180)  # five fleets
def test_case_6_a_worker_whose_card_stays_sick_leaves_its_jobs_to_others_and_says_why(lasting_farm, watched, worker):
    """Those of its fleets that did not start before one did are forgotten."""
    farm = lasting_farm
    eventually(worker.is_ready, timeout_s=90)
    fleets = worker.log.read_text().count("starting the fleet")
    jobs = [farm.client.submit(Script(name=f"job {i}", has_sticky_error=i == 3).request()) for i in range(1, 11)]
    [lost] = farm.await_event(jobs[2].id, events.AttemptLost)
    assert "CUDA error: an illegal memory access" in lost.reason
    assert lost.charge == "fatal"
    farm.start_ready("--name", "sound", "--queue", "default")
    for job in jobs:
        job.wait(timeout_s=60)
        farm.check_result(job.id)
    assert worker.process.wait(60) == EXIT_UNHEALTHY

    began = [[event.worker.rpartition("-")[0] for event in farm.events_of(job.id, events.Started)] for job in jobs]
    assert began == 2 * [["sick"]] + [["sick", "sound"]] + 7 * [["sound"]]
    [told] = [record for record in farm.list_workers() if record.name == "sick"]
    assert told.state is WorkerState.UNHEALTHY
    summary, *_ = told.reason.splitlines()
    assert re.match(r"the fleet did not start 3 times in a row: rank \d .*CUDA error: an illegal memory", summary)
    assert worker.log.read_text().count("starting the fleet") == fleets + 3


def test_a_worker_that_is_stopped_between_two_tries_to_start_its_fleet_leaves(farm):
    """It hears of it, though it is about to become a new process."""
    (farm.folder / "sickness").write_text("sticky error...")
    worker = farm.start(**{SICKNESS: str(farm.folder / "sickness")})
    eventually(worker.rank_pids, timeout_s=60)
    eventually(lambda: not worker.rank_pids(), timeout_s=60)  # a second before the next try
    worker.stop_as_docker_does()
    assert worker.log.read_text().count("starting the fleet") == 1
    assert farm.list_workers() == []
