"""Fleets that are replaced while their worker goes on: the same process, other ranks. One worker serves all tests."""

import time

import pytest

from jobs import events
from jobs.workers import WorkerState, read_workers
from tests.cases.runners import Script
from tests.waiting import eventually

LEAK_BYTES = 64 << 20
STEP_LIMIT_S = 2.0
PHASE_LIMIT_S = {"step": 6.0, "clip": 2.0}


def pytest_generate_tests(metafunc):
    if "phase" in metafunc.fixturenames:
        metafunc.parametrize("phase", PHASE_LIMIT_S if metafunc.config.getoption("full") else ["clip"])


@pytest.fixture
def worker(lasting_farm, full):
    limits = {
        "H3_RSS_GROWTH_BYTES": LEAK_BYTES,
        "H3_FIRST_STEP_TIMEOUT_S": 5.0,
        "H3_STEP_TIMEOUT_S": STEP_LIMIT_S,
        "H3_DENOISE_TIMEOUT_S": PHASE_LIMIT_S["step"],
        "H3_DECODE_TIMEOUT_S": PHASE_LIMIT_S["clip"],
    }
    limits = {name: str(limit) for name, limit in limits.items()}
    return lasting_farm.keep_ready("--name", "gpu-1", ranks=2 if full else 1, **limits)


@pytest.fixture
def another_fleet(lasting_farm, worker, watched):
    """Whatever happens, other ranks run the next job, in the same worker."""
    with lasting_farm.replacing_fleet(worker):
        yield


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


def test_case_4_a_fleet_that_does_nothing_for_ever_is_killed_and_the_attempt_charged(
    lasting_farm, another_fleet, tmp_path
):
    job = lasting_farm.client.submit(Script(name="hung", hang_until=str(tmp_path / "hung")).request())
    [step] = lasting_farm.await_event(job.id, events.CheckpointSaved)
    assert step.step == 1
    stalled_at = time.monotonic()
    [lost] = lasting_farm.await_event(job.id, events.AttemptLost)
    assert time.monotonic() - stalled_at < 6
    assert "no step for 2 s" in lost.reason
    assert lost.charge == "fatal"
    job.wait(timeout_s=90)
    assert lasting_farm.rendered("hung step") == ["hung step 1", "hung step 2"]  # resumed


@pytest.mark.slow
def test_a_phase_that_takes_too_long_costs_an_attempt_and_the_next_goes_on_from_there(
    lasting_farm, another_fleet, phase
):
    """Each step or clip is in time; together they take one and a half times what they may."""
    limit_s, part_s = PHASE_LIMIT_S[phase], 0.3
    number = round(1.5 * limit_s / part_s)
    parts = {"steps": number, "step_s": part_s} if phase == "step" else {"segments": number, "segment_s": part_s}
    job = lasting_farm.client.submit(Script(name=f"slow {phase}s", **parts).request())
    assert job.wait(timeout_s=90).attempt == 2
    [lost] = lasting_farm.events_of(job.id, events.AttemptLost)
    assert (lost.charge, f"its {phase}s have taken {limit_s:g} s" in lost.reason) == ("fatal", True)
    assert len(lasting_farm.rendered(f"slow {phase}s")) < number + 5  # only what had not arrived is done again
    lasting_farm.check_result(job.id)
