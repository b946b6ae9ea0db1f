"""A throw-away farm: a Redis, a store, and one worker, all as in production but for the runner."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis

from jobs import embedded
from jobs.client import Client
from jobs.store import Store, open_store
from jobs.workers import WorkerState, read_workers
from tools.bench_queue.scripted import Scripted
from worker.mgpu import MGPUController

REPOSITORY = Path(__file__).parents[2]
JOB_LIMIT_S = 120.0  # of a job that does nothing
START_LIMIT_S, STOP_LIMIT_S = 240.0, 20.0
LOG_TAIL_LINES = 20
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


@contextmanager
def private_redis() -> Iterator[str]:
    """The URL of a server of our own, which writes to disk like the embedded one."""
    with tempfile.TemporaryDirectory(prefix="h3-", dir="/tmp") as name:
        folder, socket = Path(name), Path(name, "redis.sock")
        process = embedded.start_server(folder, socket, launcher=DIES_WITH_PARENT)
        try:
            embedded.await_ready(process, folder, socket)
            yield embedded.socket_url(socket)
        finally:
            process.kill()
            process.wait()


@contextmanager
def fleet_alone(ranks: int) -> Iterator[MGPUController]:
    """Without queue and store."""
    controller = MGPUController(Scripted, num_gpus=ranks, backend="gloo", outputs="cpu")
    controller.start(timeout=START_LIMIT_S)
    try:
        yield controller
    finally:
        controller.shutdown(graceful_timeout=5.0)


class Farm:
    """Redis and store; and a worker, once somebody asks for it."""

    def __init__(self, redis_url: str, store_url: str, folder: Path, ranks: int) -> None:
        self.store_url, self.ranks = store_url, ranks
        self.store: Store = open_store(store_url)
        self.redis = Redis.from_url(redis_url)
        self.client = Client(self.redis, self.store)
        self._redis_url, self._log = redis_url, folder / "worker.log"
        self._has_worker = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self.redis.close()

    def start_worker(self) -> None:
        """Return when `h3render worker` is ready for jobs; it ends with the farm."""
        if self._has_worker:
            return
        log = self._stack.enter_context(self._log.open("wb"))
        process = subprocess.Popen(
            [*DIES_WITH_PARENT, *self._command()],
            cwd=REPOSITORY,
            env=os.environ | {"REDIS_URL": self._redis_url, "H3_STORE_URL": self.store_url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self._stack.callback(_end, process)
        self._await_ready(process)
        self._has_worker = True

    def _command(self) -> list[str]:
        runner = f"{Scripted.__module__}:{Scripted.__name__}"
        return [
            *(sys.executable, "-m", "h3render", "worker", "--checkpoint", str(self._log.parent)),
            *("--runner", runner, "--backend", "gloo", "--ranks", str(self.ranks)),
        ]

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while all(worker.state is not WorkerState.READY for worker in read_workers(self.redis)):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self._log.read_text().splitlines()[-LOG_TAIL_LINES:])
                raise RuntimeError(f"the worker is not ready (exit code {process.poll()}); its log ends:\n{tail}")
            time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT_S)
    process.kill()
    process.wait()
