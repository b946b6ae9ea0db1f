"""What RQ's own tools show of a farm: `rq info` and rq-dashboard, as real processes beside real workers."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from redis import Redis

from jobs.errors import JobFailed
from tests.cases.runners import Script
from tests.servers import DIES_WITH_PARENT, free_ports
from tests.waiting import eventually

BIN = Path(sys.executable).parent


@contextmanager
def dashboard(redis_url):
    """A running rq-dashboard; yields what reads a page of it."""
    [port] = free_ports(1)
    command = [
        *DIES_WITH_PARENT,
        BIN / "rq-dashboard",
        "--json",
        "--config",
        "jobs.rq_dashboard",
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with subprocess.Popen(
        [*command, "--redis-url", redis_url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:

        def read(path):
            try:
                with urlopen(f"http://127.0.0.1:{port}/0/{path}", timeout=10) as page:
                    return page.read().decode()
            except URLError as error:
                if isinstance(error.reason, ConnectionRefusedError) and server.poll() is None:
                    return None  # not up yet
                raise

        try:
            eventually(lambda: read("view/queues"), timeout_s=30)
            yield read
        finally:
            server.kill()


def rq_info(redis_url):
    """The lines of `rq info`, for programs."""
    command = [BIN / "rq", "info", "--raw", "--serializer", "json", "--url", redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


@pytest.fixture
def over_tcp(own_farm):
    """The farm's Redis as those tools can reach it."""
    [port] = free_ports(1)
    with Redis.from_url(own_farm.redis_url) as redis:
        redis.config_set("port", port)
    return f"redis://127.0.0.1:{port}/0"


def test_rqs_tools_show_what_is_true(own_farm, over_tcp, tmp_path):
    farm, gate = own_farm, tmp_path / "gate"
    finished = farm.client.submit(Script().request())
    failed = farm.client.submit(Script().request() | {"deadline_s": 0.001})
    canceled = farm.client.submit(Script().request())
    canceled.cancel()
    worker = farm.start_ready()
    finished.wait(timeout_s=60)
    with pytest.raises(JobFailed, match="still queued"):
        failed.wait(timeout_s=60)
    running = farm.client.submit(Script(gate=str(gate), gate_step=2).request())
    eventually(lambda: running.status().state == "running")
    waiting = farm.client.submit(Script().request(), queue="batch")
    with dashboard(over_tcp) as read:
        show_a_running_job(farm, read, rq_info(over_tcp), running, waiting)
        show_ended_jobs(read, finished=finished, failed=failed, canceled=canceled)
        gate.touch()
        waiting.wait(timeout_s=60)
        assert [running.status().state, waiting.status().state] == ["finished", "finished"]
        worker.send(signal.SIGTERM)
        assert worker.process.wait(30) == 0
        assert json.loads(read("data/workers.json"))["workers"] == []
    assert not [line for line in rq_info(over_tcp) if line.startswith("worker")]


def show_a_running_job(farm, read, info, running, waiting):
    [worker] = json.loads(read("data/workers.json"))["workers"]
    assert (worker["state"], worker["current_job"]["job_id"]) == ("busy", running.id)
    assert worker["queues"] == ["high", "default", "batch"]
    assert any(line.startswith("queue default 0") for line in info)
    assert any(line.startswith("queue batch 1") for line in info)
    [told] = [line for line in info if line.startswith("worker")]
    assert worker["name"] in told
    assert "busy" in told
    assert "jobs: 1 finished, 0 failed" in told
    assert registry(read, "default", "started") == [running.id]
    assert registry(read, "batch", "queued") == [waiting.id]
    assert page_of(read, running)["status"] == "started"


def show_ended_jobs(read, **jobs):
    for status, job in jobs.items():
        assert registry(read, "default", status) == [job.id]
        assert page_of(read, job)["status"] == status
    assert "still queued" in page_of(read, jobs["failed"])["exc_info"]
    assert page_of(read, jobs["finished"])["result"]["result_key"] == f"{jobs['finished'].id}/result.json"


def registry(read, queue, name):
    jobs = json.loads(read(f"data/jobs/{queue}/{name}/8/asc/1.json"))["jobs"]
    return [job["id"] for job in jobs]


def page_of(read, job):
    return json.loads(read(f"data/job/{job.id}.json"))
