"""A night, from the evening's file to the morning's report and the verdict on it."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from tests.servers import DIES_WITH_PARENT
from tools.chaos.supervised import REPOSITORY
from tools.overnight.desk import BATCH, REPORT, SHOTS, TOLD, WATCHED, Answer, Desk
from tools.overnight.farm import Farm, StoreKind, running_farm
from tools.overnight.killer import Killed, kill_in_jobs
from tools.overnight.shots import count_shots, make_rows, spoil, write_rows

CHECK_LIMIT_S = 300.0
JOBS, BATCHES = "rq:job:*", "h3:batch*"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a night is asked to be."""

    rows: int  # of the file
    seed: int
    kills: int
    workers: int
    store: StoreKind
    lease_s: float
    price: float  # of a worker machine, an hour
    longest_s: float


@dataclass(frozen=True, slots=True)
class Evening:
    """What submitting came to."""

    wrong_line: int  # of the file as it was first
    refused: Answer
    left_by_refused: int  # keys in Redis
    submitted: Answer
    again: Answer  # the same file once more
    jobs: int  # in Redis, after the first time
    jobs_after_again: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check says."""

    findings: Sequence[str]
    numbers: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Night:
    """What happened."""

    shots: int
    evening: Evening
    killed: Sequence[Killed]
    watch_code: int | None
    took_s: float  # from the submit to the end of the watch
    told: Answer
    verdict: Verdict


def run(plan: Plan, folder: Path) -> Night:
    """All that it leaves stays in `folder`, in place of an earlier night's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = make_rows(plan.rows, plan.seed)
    with running_farm(folder, plan.store, plan.workers, plan.lease_s) as farm:
        desk, begun = Desk(farm, folder), time.monotonic()
        evening = queue_batch(desk, farm, plan)
        with desk.watching(plan.price) as watch:
            killed = kill_in_jobs(farm, plan.kills, watch, plan.longest_s)
        took_s = time.monotonic() - begun
        told = desk.report(plan.price)
        verdict = check(farm, folder, plan.price)
        return Night(count_shots(rows), evening, killed, watch.returncode, took_s, told, verdict)


def queue_batch(desk: Desk, farm: Farm, plan: Plan) -> Evening:
    """With a wrong row, then put right, then once more."""
    rows = make_rows(plan.rows, plan.seed)
    spoiled = spoil(rows)
    with Redis.from_url(farm.redis_url) as redis:
        refused = desk.submit(write_rows(spoiled.rows))
        left = _count(redis, JOBS) + _count(redis, BATCHES)
        submitted = desk.submit(write_rows(rows))
        jobs = _count(redis, JOBS)
        again = desk.submit(write_rows(rows))
        return Evening(spoiled.line, refused, left, submitted, again, jobs, _count(redis, JOBS))


def _count(redis: Redis, pattern: str) -> int:
    return sum(1 for _ in redis.scan_iter(pattern, count=1000))


def check(farm: Farm, folder: Path, price: float) -> Verdict:
    """By the independent script, in a process of its own."""
    files = {"--shots": folder / SHOTS, "--told": folder / TOLD, "--watched": folder / WATCHED}
    command = [*DIES_WITH_PARENT, sys.executable, "-m", "tools.overnight.check", BATCH, str(folder / REPORT)]
    command += [word for name, path in files.items() for word in (name, str(path))]
    command += ["--redis", farm.redis_url, "--store", farm.store_url, "--price", str(price)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=farm.environment, stdout=subprocess.PIPE, timeout=CHECK_LIMIT_S, check=False
    )
    if not done.stdout:
        raise RuntimeError("the check broke: see above")
    return Verdict(**json.loads(done.stdout))
