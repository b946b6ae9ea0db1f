"""The commands of whoever runs a farm, and `cancel`, on a real Redis: one by a process of its own, the others here."""

import json
import subprocess
import sys

import pytest
from rq.job import Job
from rq.serializers import JSONSerializer

from jobs.client import Client
from jobs.lease import Leases, Orders
from jobs.workers import GPURecord, JobRecord, RankRecord, WorkerState, is_queue_paused, write_worker
from tests.jobs.commands import invoke
from tests.jobs.records import record

RANKS = (RankRecord(rank=0, pid=7, phase="ready", rss_bytes=3 << 30),)


@pytest.fixture
def run(redis_url):
    def run(*arguments, code=0):
        done = invoke(*arguments, "--url", redis_url, code=code)
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture
def run_process(redis_url):
    def run_process(*arguments):
        command = [sys.executable, "-m", "h3render", *arguments, "--url", redis_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run_process


def test_workers_are_shown_with_all_that_an_operator_asks_for(redis, run, run_process, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    job = JobRecord(job_id="a1b2", attempt=2, queue="default", phase="denoise", step=7, steps=50)
    gpus = (GPURecord(used_bytes=60 << 30, total_bytes=139 << 30),)
    write_worker(
        redis, record(redis, "gpu-1", state=WorkerState.BUSY, job=job, ranks=RANKS, gpus=gpus, fleet="running")
    )
    write_worker(redis, record(redis, "gpu-2", state=WorkerState.UNHEALTHY, reason="bad card\nTraceback", ago_s=90))
    shown = run_process("workers")
    for words in (
        "gpu-1 busy a1b2 (2) denoise 7/50 running 1, 3.0 GiB 60/139 GiB",
        "gpu-2 unhealthy",
        "bad card",
    ):
        assert words in " ".join(shown.split())
    assert "Traceback" not in shown  # a reason's first line is enough in a table
    told = json.loads(run("workers", "--json"))
    assert [(worker["name"], worker["state"]) for worker in told] == [("gpu-1", "busy"), ("gpu-2", "unhealthy")]
    assert told[1]["reason"] == "bad card\nTraceback"


def test_a_farm_without_workers_says_how_to_start_one(redis, run):
    assert run("workers") == ""


def test_a_worker_and_a_queue_are_paused_and_resumed(redis, run):
    worker = record(redis)
    write_worker(redis, worker)

    def orders():
        return Leases(redis).read_orders((worker.name, worker.id), None)

    run("worker", "pause", "gpu-1")
    assert orders() == Orders(pause=True)
    run("worker", "resume", "gpu-1")
    run("worker", "drain", "gpu-1")
    assert orders() == Orders(leave=True)
    assert "no worker 'gpu-9' is alive; known are: gpu-1" in run("worker", "pause", "gpu-9", code=2)
    run("queue", "pause", "batch")
    assert is_queue_paused(redis, "batch")
    run("queue", "resume", "batch")
    assert not is_queue_paused(redis, "batch")


def test_a_job_is_canceled_once_and_its_end_is_not_another(redis, run):
    job = Client(redis).submit({"prompt": "a red kite"})
    assert run("cancel", job.id) == f"{job.id} canceled\n"
    assert Job.fetch(job.id, connection=redis, serializer=JSONSerializer).is_canceled
    assert run("cancel", job.id) == f"{job.id} canceled\n"  # whoever asks again is told the same
    assert f"job {job.id} has ended: canceled" in run("cancel", job.id, "--attempt", "1", code=2)
    assert "no job nonesuch" in run("cancel", "nonesuch", code=2)
    running = Client(redis).submit({"prompt": "a red kite"})
    assert "is not running: none runs" in run("cancel", running.id, "--attempt", "1", code=2)
