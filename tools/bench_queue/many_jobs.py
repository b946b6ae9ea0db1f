"""The rows about thousands of jobs: how fast they are queued, and what it takes to ask for one of them."""

import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from redis import Redis

from jobs import events
from jobs.client import Client, JobHandle
from jobs.job_status import JobState, JobStatus
from jobs.lease import Leases, Waiting
from jobs.submission import Submission
from tools.bench_queue.farm import DIES_WITH_PARENT, REPOSITORY, Farm, private_redis
from tools.bench_queue.measured import Amount, Measured
from tools.bench_queue.scripted import Script, make_request

QUEUE, BATCH_QUEUE = "bench-many", "batch"
COMMAND_LIMIT_S = 300.0
LOOKS, WARM_UP_LOOKS = 200, 10
STEPS = 50  # that were told of the running job
LEASE_S = 3600.0

Asked = Literal["alone", "middle", "running"]


def measure_submit_many(_: Farm, amount: Amount) -> Measured:
    """Each a request of its own."""
    submissions = [Submission(make_request(Script(step_s=number)), QUEUE) for number in range(amount.many_jobs)]
    with private_redis() as url, Redis.from_url(url) as redis:
        begun = time.perf_counter()
        submitted = Client(redis).submit_many(submissions)
        took_s = time.perf_counter() - begun
        queued = [job_id.decode() for job_id in redis.lrange(f"rq:queue:{QUEUE}", 0, -1)]
    in_order = queued == [each.job_id for each in submitted] and len(set(queued)) == amount.many_jobs
    return Measured((amount.many_jobs / took_s,), {"every job is queued, in its place": in_order})


def measure_batch_file(_: Farm, amount: Amount) -> Measured:
    """The command in a process of its own, its start included; and once more, when there is nothing new."""
    with private_redis() as url, Redis.from_url(url) as redis, tempfile.TemporaryDirectory(prefix="h3-bench-") as name:
        file = Path(name, "shots.csv")
        _write_shots(file, amount.many_jobs)
        took_s, again_s = (_time_submit(file, url) for _ in range(2))
        queued = redis.llen(f"rq:queue:{BATCH_QUEUE}")
    return Measured(
        (took_s,), {"every row is queued, once": queued == amount.many_jobs}, {"submitted_again_s": round(again_s, 2)}
    )


def _write_shots(file: Path, rows: int) -> None:
    with file.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text)
        writer.writerow(["name", "prompt", "seed", "width", "height", "seconds", "steps"])
        for number in range(rows):
            prompt = f"Shot {number}: a red kite climbs over the harbour,\nwhile the ferry sounds its horn"
            writer.writerow([f"shot-{number:05}", prompt, number, 1280, 704, 5, 50])


def _time_submit(file: Path, url: str) -> float:
    command = [*DIES_WITH_PARENT, sys.executable, "-m", "h3render", "batch", "submit", str(file)]
    begun = time.perf_counter()
    done = subprocess.run(
        [*command, "--name", "bench", "--url", url],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False,
    )  # fmt: skip
    took_s = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"`batch submit` ended with {done.returncode}: {done.stderr[-500:]}")
    return took_s


def measure_status(_: Farm, amount: Amount, of: Asked) -> Measured:
    """No worker is there."""
    with private_redis() as url, Redis.from_url(url) as redis:
        job, expected = _prepare(redis, of, amount.many_jobs)
        took_ms, told = _look_often(job)
    is_right = all((status.state, status.position) == expected for status in told)
    return Measured(took_ms, {"it says where the job is": is_right})


def _prepare(redis: Redis, of: Asked, jobs: int) -> tuple[JobHandle, tuple[JobState, int | None]]:
    """A job, its state, and its position."""
    client = Client(redis)
    match of:
        case "alone":
            return client.submit(make_request(Script()), queue=QUEUE), (JobState.WAITING, 1)
        case "middle":
            submitted = client.submit_many([Submission(make_request(Script()), QUEUE)] * jobs)
            return client.job(submitted[jobs // 2].job_id), (JobState.WAITING, jobs // 2 + 1)
    job = client.submit(make_request(Script()), queue=QUEUE)
    lease = Leases(redis, lease_s=LEASE_S).claim(Waiting(job.id, QUEUE, "", b"", 0.0), "bench")
    if lease is None:
        raise RuntimeError("the job could not be claimed")
    for step in range(1, STEPS + 1):
        lease.tell(events.StepDone(step=step, steps=STEPS, sigma=0.5, seconds=1.0))
    return job, (JobState.RUNNING, None)


def _look_often(job: JobHandle) -> tuple[tuple[float, ...], list[JobStatus]]:
    took_ms: list[float] = []
    told: list[JobStatus] = []
    for _ in range(WARM_UP_LOOKS + LOOKS):
        begun = time.perf_counter()
        told.append(job.status())
        took_ms.append(1e3 * (time.perf_counter() - begun))
    return tuple(took_ms[WARM_UP_LOOKS:]), told
