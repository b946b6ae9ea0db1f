"""The row about many who follow one job: how late each of them has what its worker tells."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from redis import Redis

from jobs import events
from jobs.client import Client
from jobs.lease import Lease, Leases, Waiting
from jobs.submission import Submission
from tools.bench_queue.farm import DIES_WITH_PARENT, REPOSITORY, Farm, private_redis
from tools.bench_queue.follower import Receipt
from tools.bench_queue.measured import Amount, Measured
from tools.bench_queue.scripted import Script, make_request
from tools.figures import percentile_95

QUEUE = "bench-followers"
OTHER_JOBS = 1000
KINDS = ("threads", "tasks")  # of Client, of AsyncClient
FOLLOWERS_A_KIND = 25
EVENTS_PER_S = 10.0
REST_S = 0.5  # for the last follower to wait for news
END_LIMIT_S = 60.0
LEASE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Story:
    """What was told about the job."""

    ids: Sequence[str]  # of all its events, in their order
    told_at: dict[str, float]  # by id, of those whose way is measured: just before they were told


def measure_followers(_: Farm, amount: Amount) -> Measured:
    """25 threads of one Client in one process, 25 tasks of one AsyncClient in another, over loopback."""
    with private_redis() as socket_url, Redis.from_url(socket_url) as redis, ExitStack() as stack:
        lease, url = _claim_one(redis), _listen_on_loopback(redis)
        processes = {kind: stack.enter_context(_followers(kind, url, lease.job_id)) for kind in KINDS}
        for process in processes.values():
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a process of followers ended before all of them were there")
        time.sleep(REST_S)
        story = _tell(redis, lease, amount.follow_s)
        got = {kind: json.loads(process.communicate(timeout=END_LIMIT_S)[0]) for kind, process in processes.items()}
    return _judge(story, got)


def _listen_on_loopback(redis: Redis) -> str:
    """The server's URL as followers of a farm have one: over TCP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    redis.config_set("bind", "127.0.0.1")
    redis.config_set("port", port)
    return f"redis://127.0.0.1:{port}/0"


def _claim_one(redis: Redis) -> Lease:
    """A job that is run while many wait."""
    client = Client(redis)
    job = client.submit(make_request(Script()), queue=QUEUE)
    client.submit_many([Submission(make_request(Script()), QUEUE)] * OTHER_JOBS)
    lease = Leases(redis, lease_s=LEASE_S).claim(Waiting(job.id, QUEUE, "", b"", 0.0), "bench")
    if lease is None:
        raise RuntimeError("the job to follow could not be claimed")
    return lease


@contextmanager
def _followers(kind: str, url: str, job_id: str) -> Iterator[subprocess.Popen[str]]:
    command = [*DIES_WITH_PARENT, sys.executable, "-m", "tools.bench_queue.follower"]
    command += [kind, url, job_id, str(FOLLOWERS_A_KIND)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _tell(redis: Redis, lease: Lease, seconds: float) -> Story:
    """Steps, evenly, and then the job's end."""
    steps = max(1, round(seconds * EVENTS_PER_S))
    told_at: list[float] = []
    begun = time.monotonic()
    for step in range(1, steps + 1):
        time.sleep(max(0.0, begun + step / EVENTS_PER_S - time.monotonic()))
        told_at.append(time.monotonic())
        lease.tell(events.StepDone(step=step, steps=steps, sigma=0.5, seconds=1 / EVENTS_PER_S))
    lease.cancel(events.Canceled(attempt=lease.attempt))
    log = redis.xrange(events.EVENTS_KEY.format(job_id=lease.job_id))
    ids = [entry.decode() for entry, _ in log]
    steps_told = [entry.decode() for entry, fields in log if json.loads(fields[b"event"])["kind"] == "step_done"]
    return Story(ids, dict(zip(steps_told, told_at, strict=True)))


def _judge(story: Story, got: dict[str, list[list[Receipt]]]) -> Measured:
    lags = {kind: [lag for receipts in got[kind] for lag in _lags_ms(story, receipts)] for kind in got}
    every = tuple(lag for kind in lags for lag in lags[kind])
    has_all = all([entry for entry, _ in receipts] == story.ids for kind in got for receipts in got[kind])
    details: dict[str, object] = {"followers": sum(map(len, got.values())), "events": len(story.ids)}
    details |= {"others_queued": OTHER_JOBS, "max_ms": round(max(every), 2)}
    details |= {f"{kind}_p95_ms": round(percentile_95(lags[kind]), 2) for kind in lags}
    return Measured(every, {"every follower has every event once, in order": has_all}, details)


def _lags_ms(story: Story, receipts: Sequence[Receipt]) -> Iterator[float]:
    return (1e3 * (at - story.told_at[entry]) for entry, at in receipts if entry in story.told_at)
