"""Rented machines on one machine: for each pod of RunPod's test server a real worker, which knows what its order says.

The worker runs a light runner, without a model; who rents is the real command.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from redis import Redis

from infra.reconciler.lease import FleetKeys
from jobs.workers import read_workers
from tests.infra.pod_commands import ROOT, make_environment
from tests.infra.runpod.clock import WallClock
from tests.infra.runpod.pods import QUICK, Pod, Status
from tests.infra.runpod.server import RunPod, running_runpod
from tests.infra.runpod.world import World
from tests.servers import DIES_WITH_PARENT, RedisServer
from tests.waiting import eventually
from tools.chaos.check import Published, Shelf, examine_pieces, open_objects
from tools.overnight.raw import RawRow, read_rows
from tools.overnight.runners import Night

KEY, SECRET = "rpa_CANARY0123456789", "canary-of-env"
BATCH, FLEET, IMAGE = "rented", "farm", "example/h3render:1"
COMMAND = [*DIES_WITH_PARENT, sys.executable, "-m", "h3render"]
PATIENCE = {
    "H3_PODS_LOOK_S": "0.25",
    "H3_PODS_RAISE_EVERY_S": "0.5",
    "H3_PODS_SURPLUS_S": "0.5",
    "H3_PODS_IDLE_S": "0.5",
    "H3_PODS_BOOT_S": "1",
}
LIMITS = ("--budget-per-hour", "20", "--budget-total", "5", "--target-wait", "1", "--count", "1")


class Machines:
    """What stands behind the pods."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, name: str, env: Mapping[str, str]) -> Callable[[], None]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*COMMAND, "worker"],
                cwd=ROOT,
                env=kept | {"PYTHONPATH": str(ROOT)} | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return partial(_cut_power, process)


def _cut_power(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Up:
    """`h3render pods up`, as it runs."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def await_end(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def read(self) -> str:
        return self._log.read_text()


@dataclass(frozen=True)
class Rented:
    """Redis, a store, RunPod, and somebody's desk."""

    runpod: RunPod
    redis: Redis
    folder: Path
    redis_folder: Path  # where it keeps its data
    store_url: str
    environment: Mapping[str, str]  # of whoever rents and submits
    env_file: Path
    most: int  # pods at once
    _numbers: Iterator[int]

    def submit(self, shots: int, steps: int) -> None:
        rows = "".join(f"shot-{number},A lighthouse. No. {number}\n" for number in range(shots))
        (self.folder / "shots.csv").write_text(f"name,prompt\n{rows}")
        size = ("--width", "64", "--height", "64", "--frames", "22", "--steps", str(steps))
        done = subprocess.run(
            [*COMMAND, "batch", "submit", str(self.folder / "shots.csv"), "--name", BATCH, *size],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    @contextmanager
    def running_up(self) -> Iterator[Up]:
        log = self.folder / f"up-{next(self._numbers)}.log"
        order = ("--image", IMAGE, "--env-file", str(self.env_file), "--fleet", FLEET)
        with log.open("w") as output:
            process = subprocess.Popen(
                [*COMMAND, "pods", "up", *LIMITS, "--max", str(self.most), *order, "--until-done", "--yes"],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
            )
        up = Up(process, log)
        try:
            yield up
        finally:
            up.kill()

    def let_lease_run_out(self) -> None:
        """As it does two minutes after its holder was killed."""
        key = FleetKeys.of("h3render", FLEET).lease
        assert self.redis.pexpire(key, 1)
        eventually(lambda: not self.redis.exists(key))

    # --- what came of it

    def read_rows(self) -> list[RawRow]:
        return read_rows(self.redis, open_objects(self.store_url), BATCH)

    def read_events(self, job_id: str) -> list[tuple[float, dict[str, Any]]]:
        """With their times, in seconds since 1970."""
        told = self.redis.xrange(f"h3:events:{job_id}")
        return [(int(entry.split(b"-")[0]) / 1000, json.loads(fields[b"event"])) for entry, fields in told]

    def find_busy(self) -> list[str]:
        """Names of the workers that render."""
        return [record.name for record in read_workers(self.redis) if record.job is not None]

    def read_books(self) -> bytes:
        """All that was ever written into Redis, and into files on the desk but what somebody put there."""
        made = [path for path in self.folder.rglob("pods*") if path.is_file()]
        assert made, "there is a ledger"
        return b"".join(path.read_bytes() for path in [*made, *self.redis_folder.rglob("*.aof")])

    def find_flaws(self) -> list[str]:
        """What is wrong with results, by whoever shares no code with the farm."""
        objects, rows = open_objects(self.store_url), self.read_rows()
        found = [f"{row.label} is {row.state}: {row.doubts}" for row in rows if row.state != "finished" or row.doubts]
        results = Shelf(objects).find_results()
        found += [f"{row.label} has results {results[row.job_id]}" for row in rows if len(results[row.job_id]) != 1]
        for row in rows:
            found += [text for _, text in examine_pieces(Published.read(objects, row.job_id))]
        return found + [f"{job} was not asked for" for job in results.keys() - {row.job_id for row in rows}]


@contextmanager
def renting(redis: RedisServer, folder: Path, most: int) -> Iterator[Rented]:
    """Whatever was started has ended with the block."""
    machines, store = folder / "machines", (folder / "store").as_uri()
    machines.mkdir()
    env_file = folder / "pod.env"
    env_file.touch(mode=0o600)
    env_file.write_text("".join(f"{name}={value}\n" for name, value in _tell_pods(redis.url, store, machines).items()))
    world = World(course=QUICK)
    with (
        running_runpod(clock=WallClock(), world=world, key=KEY, start=Machines(machines).start) as runpod,
        Redis.from_url(redis.url) as client,
    ):
        variables = {"REDIS_URL": redis.url, "H3_STORE_URL": store, **PATIENCE, **runpod.environment}
        environment = make_environment(folder, variables)
        yield Rented(runpod, client, folder, redis.socket.parent, store, environment, env_file, most, count(1))
        assert runpod.outside() == []


def _tell_pods(redis_url: str, store_url: str, folder: Path) -> dict[str, str]:
    return {
        "REDIS_URL": redis_url,
        "H3_STORE_URL": store_url,
        "H3_RUNNER": f"{Night.__module__}:{Night.__name__}",
        "H3_MODEL_PATH": str(folder),
        "H3_SPOOL_DIR": str(folder),
        "H3_LEAST_FREE_BYTES": "0",
        "H3_WORLD_SIZE": "1",
        "H3_BACKEND": "gloo",
        "H3_LEASE_S": "3",
        "OMP_NUM_THREADS": "1",
        "FARM_TOKEN": SECRET,
    }


# --- pods


def count_most(pods: Sequence[Pod]) -> int:
    """Of all moments: how many there were at once."""
    return max(sum(other.created_at <= pod.created_at < find_end(other) for other in pods) for pod in pods)


def find_end(pod: Pod) -> float:
    return next((phase.since for phase in pod.phases if phase.status is Status.TERMINATED), float("inf"))
