"""A run, from an empty farm to the verdict."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from redis import Redis

from tests.servers import DIES_WITH_PARENT
from tools.chaos.clients import Ledger, Submitter, render_undisturbed
from tools.chaos.farm import Farm, running_farm
from tools.chaos.faults import draw_faults
from tools.chaos.history import Story, read_stories
from tools.chaos.storm import Happened, Storm
from tools.chaos.work import make_requests

LONGEST_STORM_S = 3600.0
UNDISTURBED_LIMIT_S = 300.0
CHECK_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is asked to be."""

    seed: int
    jobs: int
    workers: int
    steps: int  # of a job
    is_light: bool  # without a model
    gap_s: float  # between two faults, in the mean
    most_faults: int | None  # None: until the last job is begun
    lease_s: float
    rest_s: float  # for the farm to finish, once the faults are over


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check says."""

    is_clean: bool
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """What happened."""

    happened: list[Happened]
    began_at: float  # Unix time of the storm
    storm_s: float
    rest_s: float  # until the last job had ended
    exit_codes: list[list[int]]  # of each worker, in their order; the last is of the end
    given_up: list[str]  # workers that are not to be started again, as their exit code said
    spool_left: int  # folders that killed workers have left
    stories: list[Story]
    verdict: Verdict


def run(plan: Plan, folder: Path) -> Run:
    """Logs and ledger stay in `folder`, in place of an earlier run's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ledger = Ledger(make_requests(plan.jobs, plan.steps))
    with running_farm(folder, workers=plan.workers, lease_s=plan.lease_s, is_light=plan.is_light) as farm:
        render_undisturbed(farm.open_client(), ledger, UNDISTURBED_LIMIT_S)
        storm, began_at = Storm(farm), time.time()
        faults = draw_faults(plan.seed, mean_gap_s=plan.gap_s, lease_s=plan.lease_s)
        with Submitter(farm.redis.url, ledger, jobs=plan.jobs, waiting=2 * plan.workers) as submitter:
            storm.rage(islice(faults, plan.most_faults), submitter.all_taken, longest_s=LONGEST_STORM_S)
            over_at = time.time()
            submitter.all_ended.wait(plan.rest_s)
        rested_at = time.time()
        farm.end_workers()
        return Run(
            storm.happened,
            began_at,
            over_at - began_at,
            rested_at - over_at,
            [worker.exit_codes for worker in farm.workers],
            [worker.name for worker in farm.workers if worker.is_given_up()],
            len(list(farm.spool.iterdir())),
            read_all_stories(farm.redis.url, ledger),
            check(farm, ledger, folder / "ledger.json"),
        )


def read_all_stories(redis_url: str, ledger: Ledger) -> list[Story]:
    with Redis.from_url(redis_url) as redis:
        return read_stories(redis, ledger.jobs)


def check(farm: Farm, ledger: Ledger, path: Path) -> Verdict:
    """By the independent script, in a process of its own."""
    path.write_text(json.dumps(asdict(ledger), indent=1))
    script = Path(__file__).with_name("check.py")
    command = [*DIES_WITH_PARENT, sys.executable, str(script), str(path)]
    command += ["--redis", farm.redis.url, "--store", farm.store_url]
    done = subprocess.run(command, env=farm.environment, stdout=subprocess.PIPE, timeout=CHECK_LIMIT_S, check=False)
    if not done.stdout:
        raise RuntimeError("the check broke: see above")
    return Verdict(done.returncode == 0, json.loads(done.stdout))
