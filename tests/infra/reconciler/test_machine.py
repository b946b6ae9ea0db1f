"""What an order, its pod, its worker and the pod's own report make together."""

from datetime import timedelta

import pytest

from infra.ledger import RowState
from infra.pod_report import BootState, PodReport
from infra.reconciler.machine import Stage, join_machines
from jobs.workers import JobRecord, WorkerState
from tests.infra.pods import NAME, NOW, make_pod, make_row
from tests.jobs.records import record_at

NOW_S = NOW.timestamp()
JOB = JobRecord(job_id="j1", attempt=1, queue="batch", phase="denoise")


def make_worker(state, started_s=0.0, **fields):
    own = {"host": "pod1", "started_at": started_s, "beat_s": 5, "fleet": "ready"}
    return record_at(NOW_S, NAME, ago_s=40, nonce=str(started_s), state=state, **own, **fields)


def make_report(state, *, wants_end):
    return PodReport(name=NAME, pod_id="pod1", state=state, reason="why", at=NOW_S, wants_end=wants_end)


def join(row_state=RowState.CREATED, pods=None, workers=(), report=None, **row):
    pods = [make_pod()] if pods is None else pods
    reports = {report.name: report} if report is not None else {}
    (machine,) = join_machines([make_row(row_state, **row)], pods, workers, reports, NOW, NOW_S)
    return machine


@pytest.mark.parametrize(
    ("row", "status", "worker", "stage"),
    [
        (RowState.INTENT, None, None, Stage.ORDERED),
        (RowState.UNKNOWN, None, None, Stage.ORDERED),
        (RowState.CREATED, None, None, Stage.ORDERED),  # it is not listed yet
        (RowState.CREATED, "TERMINATED", None, Stage.ORDERED),  # gone; the row is closed once it is old enough
        (RowState.CREATED, "PROVISIONING", None, Stage.STARTING),
        (RowState.CREATED, "STARTING", None, Stage.STARTING),
        (RowState.CREATED, "RUNNING", None, Stage.STARTING),
        (RowState.CREATED, "RUNNING", WorkerState.STARTING, Stage.STARTING),
        (RowState.CREATED, "RUNNING", WorkerState.READY, Stage.READY),
        (RowState.CREATED, "RUNNING", WorkerState.BUSY, Stage.BUSY),
        (RowState.CREATED, "RUNNING", WorkerState.PAUSED, Stage.PAUSED),
        (RowState.CREATED, "RUNNING", WorkerState.DRAINING, Stage.LEAVING),
        (RowState.CREATED, "RUNNING", WorkerState.UNHEALTHY, Stage.UNFIT),
        (RowState.CREATED, "RUNNING", WorkerState.LOST, Stage.SILENT),
        (RowState.CREATED, "HIBERNATING", WorkerState.READY, Stage.STRANGE),
        (RowState.CREATED, "EXITED", WorkerState.READY, Stage.FAILED),
        (RowState.CREATED, "ERROR", None, Stage.FAILED),
        (RowState.DRAINING, "RUNNING", WorkerState.BUSY, Stage.DRAINING),
        (RowState.DRAINING, "EXITED", None, Stage.FAILED),
        (RowState.TERMINATING, "RUNNING", WorkerState.BUSY, Stage.ENDING),
        (RowState.TERMINATING, None, None, Stage.ENDING),
    ],
)
def test_the_stage(row, status, worker, stage):
    pods = [make_pod(status=status)] if status is not None else []
    workers = [make_worker(worker)] if worker is not None else []
    assert join(row, pods, workers).stage == stage


@pytest.mark.parametrize("state", [RowState.FAILED, RowState.GONE])
def test_an_order_that_is_closed_is_none(state):
    assert join_machines([make_row(state)], [make_pod()], [], {}, NOW, NOW_S) == ()


@pytest.mark.parametrize(
    ("state", "wants_end", "stage"),
    [
        (BootState.UNFIT, True, Stage.UNFIT),
        (BootState.LEAVING, True, Stage.LEAVING),
        (BootState.LEAVING, False, Stage.READY),
        (BootState.SERVING, False, Stage.READY),
    ],
)
def test_a_pod_s_own_word_goes_before_its_worker_s(state, wants_end, stage):
    machine = join(workers=[make_worker(WorkerState.READY)], report=make_report(state, wants_end=wants_end))
    assert machine.stage == stage


def test_what_its_worker_does():
    machine = join(workers=[make_worker(WorkerState.BUSY, job=JOB)])
    assert (machine.job, machine.takes_jobs, machine.is_heard, machine.silent_s) == ("j1", True, True, 40)
    lost = join(workers=[make_worker(WorkerState.LOST, job=JOB)])
    assert (lost.job, lost.takes_jobs, lost.is_heard) == (None, False, False)
    leaving = join(workers=[make_worker(WorkerState.DRAINING, job=JOB)])
    assert (leaving.job, leaving.takes_jobs, leaving.is_heard) == ("j1", False, False)


def test_the_latest_process_of_a_worker_counts():
    records = [make_worker(WorkerState.READY, 2.0), make_worker(WorkerState.LOST, 1.0)]
    assert join(workers=records).stage is Stage.READY


def test_of_two_pods_with_a_name_the_older_one_is_meant():
    later = make_pod(id="pod2", createdAt=NOW.isoformat())
    assert join(pods=[later, make_pod()]).pod.id == "pod1"


@pytest.mark.parametrize(
    ("status", "cost", "counted"), [("RUNNING", 14.0, 14.0), ("STARTING", 0.0, 15.12), ("STARTING", 16.0, 16.0)]
)
def test_what_it_costs_is_its_price_at_least_until_it_runs(status, cost, counted):
    assert join(pods=[make_pod(status=status, cost=cost)]).usd_per_hour == counted
    assert join(RowState.INTENT, pods=[]).usd_per_hour == 15.12


def test_how_long_its_lease_goes_on():
    assert join(lease_until=NOW + timedelta(hours=1)).lease_left_s(NOW) == 3600
    assert join().lease_left_s(NOW) == float("inf")
