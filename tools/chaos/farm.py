"""The farm that is disturbed: Redis, store and workers, all real, with limits of seconds. It ends with its block."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.client import Client
from tests.servers import DIES_WITH_PARENT, WeedServer, short_folder
from tools.chaos.durable_redis import DurableRedis
from tools.chaos.light import Light
from tools.chaos.supervised import REPOSITORY, SupervisedWorker, end_together

PREFIX = "chaos"
LIMITS = {
    "H3_START_TIMEOUT_S": "120",
    "H3_FIRST_STEP_TIMEOUT_S": "60",
    "H3_STEP_TIMEOUT_S": "30",
    "H3_CLIP_TIMEOUT_S": "30",
    "H3_UPLOAD_TIMEOUT_S": "60",
    "H3_LEAST_FREE_BYTES": "0",
}
OURS = ("H3_", "AWS_", "REDIS_")


@dataclass(frozen=True, slots=True)
class Farm:
    redis: DurableRedis
    weed: WeedServer
    workers: list[SupervisedWorker]
    store_url: str
    environment: Mapping[str, str]  # of whoever reads the store
    spool: Path

    def open_client(self) -> Client:
        return Client.open(self.redis.url)

    def end_workers(self) -> None:
        end_together(self.workers)


@contextmanager
def running_farm(folder: Path, *, workers: int, lease_s: float, is_light: bool) -> Iterator[Farm]:
    """Logs, checkpoint and spool lie in `folder`; Redis and store have private ones.

    is_light  without a model
    """
    with ExitStack() as stack:
        redis = DurableRedis(stack.enter_context(short_folder()))
        stack.callback(redis.kill)
        weed = WeedServer(stack.enter_context(short_folder()))
        stack.callback(weed.end)
        runner = ["--runner", f"{Light.__module__}:{Light.__name__}", "--checkpoint", str(folder)]
        if not is_light:
            runner = ["--checkpoint", str(make_checkpoint(folder))]
        spool = folder / "spool"
        spool.mkdir()
        weed.await_usable()
        store_url = f"s3://{weed.s3.bucket}/{PREFIX}"
        farm = Farm(redis, weed, [], store_url, clean_environment() | weed.s3.environment, spool)
        stack.callback(farm.end_workers)
        settings = {"H3_LEASE_S": str(lease_s), "H3_SPOOL_DIR": str(spool), "OMP_NUM_THREADS": "1"}
        arguments = [*runner, "--ranks", "1", "--backend", "gloo", "--url", redis.url, "--store", store_url]
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            environment = {**farm.environment, **LIMITS, **settings}
            farm.workers.append(SupervisedWorker(number, arguments, environment, log))
        yield farm


def make_checkpoint(folder: Path) -> Path:
    checkpoint = folder / "checkpoint"
    command = [*DIES_WITH_PARENT, sys.executable, "-m", "h3render", "checkpoint", "tiny", str(checkpoint)]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    return checkpoint


def clean_environment() -> dict[str, str]:
    """Without what a person has set for a farm of theirs."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
