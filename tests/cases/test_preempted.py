"""Batch jobs that make way for urgent ones, and workers and queues that make way at a command. Two serve all tests."""

import pytest

from jobs import events
from jobs.client import Client
from jobs.lease import Charge, Leases
from jobs.workers import WorkerState
from tests.cases.runners import Script
from tests.waiting import eventually

STEP_S = 0.05
WAIT_S = 3.0  # in which a worker would have made way: after two seconds


@pytest.fixture
def workers(lasting_farm):
    if not lasting_farm.workers:
        started = [lasting_farm.start("--name", name) for name in ("a", "b")]
        eventually(lambda: all(worker.is_ready() for worker in started), timeout_s=90)
    return lasting_farm.workers


def submit_long(farm, name, queue, seconds):
    return farm.client.submit(Script(name=name, steps=round(seconds / STEP_S), step_s=STEP_S).request(), queue=queue)


def await_steps(farm, name, seconds):
    """As many as take so long."""
    eventually(lambda: len(farm.rendered(f"{name} step")) > seconds / STEP_S, timeout_s=60)


def losses(farm, *jobs):
    return [loss for job in jobs for loss in farm.events_of(job.id, events.AttemptLost)]


def test_of_two_workers_one_puts_its_batch_job_back_for_a_job_that_may_preempt(lasting_farm, workers, watched):
    batch = [submit_long(lasting_farm, name, "batch", 2 * WAIT_S) for name in ("first", "second")]
    for job in batch:
        lasting_farm.await_event(job.id, events.Started)
    patient = lasting_farm.client.submit(Script(name="patient").request(), queue="high")
    await_steps(lasting_farm, "first", WAIT_S)
    assert losses(lasting_farm, *batch) == []  # not for one that may not

    urgent = lasting_farm.client.submit(Script(name="urgent").request(preempt=True), queue="high")
    urgent.wait(timeout_s=30)
    [lost] = losses(lasting_farm, *batch)
    assert (lost.charge, lost.reason) == (Charge.DRAINED, f"made way for job {urgent.id}")
    for job, name in zip((patient, *batch), ("patient", "first", "second"), strict=True):
        job.wait(timeout_s=60)
        steps = lasting_farm.rendered(f"{name} step")
        assert len(set(steps)) == len(steps) == job.request().steps  # each once
    [put_back] = [job for job in batch if len(lasting_farm.events_of(job.id, events.Started)) == 2]
    [began, *_] = lasting_farm.events_of(put_back.id, events.Started)
    assert lasting_farm.events_of(urgent.id, events.Started)[0].worker == began.worker  # who has made way


def test_neither_a_default_job_nor_that_of_a_paused_worker_makes_way(lasting_farm, workers, watched):
    """Who is paused would not take the urgent job."""
    default, batch = (submit_long(lasting_farm, queue, queue, 1.5 * WAIT_S) for queue in ("default", "batch"))
    lasting_farm.await_event(default.id, events.Started)
    [began] = lasting_farm.await_event(batch.id, events.Started)
    pausing = began.worker.rpartition("-")[0]
    assert lasting_farm.run("worker", "pause", pausing).exit_code == 0
    urgent = lasting_farm.client.submit(Script(name="later").request(preempt=True), queue="high")
    await_steps(lasting_farm, "default", WAIT_S)
    assert losses(lasting_farm, default, batch) == []
    assert urgent.status().state.is_queued
    urgent.wait(timeout_s=30)
    batch.wait(timeout_s=30)
    assert losses(lasting_farm, default, batch) == []

    eventually(
        lambda: {w.name: w.state for w in lasting_farm.list_workers()}[pausing] is WorkerState.PAUSED, timeout_s=30
    )
    assert lasting_farm.run("worker", "resume", pausing).exit_code == 0


def test_a_job_that_has_come_back_may_be_made_way_for_again(redis):
    urgent = Client(redis).submit(Script().request(preempt=True), queue="high")
    leases = Leases(redis)
    assert leases.make_way(urgent.id, "a")
    [[waiting]] = leases.peek(["high"], 0, 1)
    leases.claim(waiting, "a").hand_back(Charge.FATAL, "lost")
    assert leases.make_way(urgent.id, "b")


def test_nothing_is_taken_of_a_paused_queue_until_it_is_resumed(lasting_farm, workers, watched):
    assert lasting_farm.run("queue", "pause", "default").exit_code == 0
    held, other = (
        lasting_farm.client.submit(Script(name="held").request(), queue=queue) for queue in ("default", "batch")
    )
    other.wait(timeout_s=30)
    assert (held.status().state, held.status().waiting_for) == ("waiting", "waiting: queue default is paused")
    assert lasting_farm.run("queue", "resume", "default").exit_code == 0
    assert held.wait(timeout_s=30).attempt == 1


def test_idle_workers_leave_when_the_command_says_so_and_take_nothing_more(lasting_farm, workers, watched):
    """The last of these tests: it ends both."""
    told = lasting_farm.run("worker", "drain", "c")
    assert (told.exit_code, "no worker 'c' is alive; known are: a, b" in told.stderr) == (2, True)
    for name in ("a", "b"):
        assert lasting_farm.run("worker", "drain", name).exit_code == 0
    for worker in workers:
        worker.await_good_end()
    job = lasting_farm.client.submit(Script(name="nobody").request())
    assert (job.status().state, job.status().waiting_for) == ("waiting", "waiting: no worker is alive")
