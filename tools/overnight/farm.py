"""The farm of the night: Redis, store and workers, all real, with a light runner. It ends with its block."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.servers import running_redis, running_weed
from tools.chaos.farm import LIMITS, clean_environment
from tools.chaos.supervised import SupervisedWorker, end_together
from tools.overnight.runners import GATE, Night

PREFIX = "overnight"


class StoreKind(StrEnum):
    """Where results go."""

    FILE = "file"
    S3 = "s3"


@dataclass(frozen=True, slots=True)
class Farm:
    redis_url: str
    store_url: str
    environment: Mapping[str, str]  # of whoever uses it
    workers: list[SupervisedWorker]
    gate: Path  # once this file is there, long jobs no longer wait to be met in their middle

    def end_workers(self) -> None:
        end_together(self.workers)


@contextmanager
def running_farm(folder: Path, kind: StoreKind, workers: int, lease_s: float) -> Iterator[Farm]:
    """Logs, spool and a folder that is a store lie in `folder`."""
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis(append_only=True))
        environment = clean_environment()
        if kind is StoreKind.S3:
            s3 = stack.enter_context(running_weed()).s3
            store_url, environment = f"s3://{s3.bucket}/{PREFIX}", environment | s3.environment
        else:
            store_url = (folder / "store").as_uri()
        environment |= {"REDIS_URL": redis.url, "H3_STORE_URL": store_url, "OMP_NUM_THREADS": "1"}
        farm = Farm(redis.url, store_url, environment, [], folder / "gate")
        stack.callback(farm.end_workers)
        farm.workers.extend(_start_workers(folder, environment | {GATE: str(farm.gate)}, workers, lease_s))
        yield farm


def _start_workers(
    folder: Path, environment: Mapping[str, str], workers: int, lease_s: float
) -> Iterator[SupervisedWorker]:
    spool = folder / "spool"
    spool.mkdir()
    arguments = ["--checkpoint", str(folder), "--runner", f"{Night.__module__}:{Night.__name__}"]
    arguments += ["--ranks", "1", "--backend", "gloo"]
    settings = {**LIMITS, "H3_LEASE_S": str(lease_s), "H3_SPOOL_DIR": str(spool)}
    for number in range(workers):
        own = {**environment, **settings, "H3_WORKER_NAME": f"worker-{number}"}
        yield SupervisedWorker(number, arguments, own, folder / f"worker-{number}.log")
