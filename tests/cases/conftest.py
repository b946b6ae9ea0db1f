"""Workers as child processes, with leases of seconds, and a watch over where every job is."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from jobs.client import Client
from jobs.events import Event
from jobs.result import Result
from jobs.store import open_store
from tests.cases.runners import TRACE
from tests.servers import DIES_WITH_PARENT, RedisServer
from tests.waiting import eventually

LEASE_S = 2.0
STOP_TIMEOUT_S = 20

# For each job: how often it is queued, whether it is claimed, whether it has ended. Atomic.
PLACES = """
local found = {}
for _, key in ipairs(redis.call('KEYS', 'rq:job:*')) do
  local id = string.sub(key, 8)
  local queued = 0
  for _, queue in ipairs({'high', 'default', 'batch'}) do
    for _, entry in ipairs(redis.call('LRANGE', 'rq:queue:' .. queue, 0, -1)) do
      if entry == id then queued = queued + 1 end
    end
  end
  local claimed = redis.call('ZSCORE', 'h3:leases', id) and 1 or 0
  local ended = redis.call('HEXISTS', key, 'h3_outcome')
  table.insert(found, id .. ' queued ' .. queued .. ' claimed ' .. claimed .. ' ended ' .. ended)
  if queued + claimed + ended ~= 1 then return {'WRONG', found[#found]} end
end
return found
"""


@dataclass
class Worker:
    process: subprocess.Popen[bytes]
    log: Path

    def is_ready(self) -> bool:
        return "ready for jobs" in self.log.read_text()

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def kill_group(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Farm:
    """One Redis, one store, and workers that come and go."""

    redis_url: str
    store_url: str
    folder: Path
    stack: ExitStack
    lease_s: float = LEASE_S
    server: RedisServer | None = None
    workers: list[Worker] = field(default_factory=list)
    restarts: int = 0

    def __post_init__(self) -> None:
        self.redis = self.stack.enter_context(Redis.from_url(self.redis_url))
        self.client = Client(self.redis)
        self.trace = self.folder / "trace"
        self.trace.touch()

    def start(self, *arguments: str, ranks: int = 1, **environment: str) -> Worker:
        """A worker that has said it is ready."""
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        command = [*DIES_WITH_PARENT, sys.executable, "-m", "h3render", "worker", "--checkpoint", str(self.folder)]
        command += ["--runner", "tests.cases.runners:Scripted", "--ranks", str(ranks), "--backend", "gloo"]
        command += ["--url", self.redis_url, "--store", self.store_url, *arguments]
        settings = {TRACE: str(self.trace), "H3_LEASE_S": str(self.lease_s), "H3_LEAST_FREE_BYTES": "0"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=os.environ | settings | environment, stdout=output, stderr=output, start_new_session=True
            )
        self.stack.callback(end, process)
        self.workers.append(Worker(process, log))
        return self.workers[-1]

    def start_ready(self, *arguments: str, ranks: int = 1, **environment: str) -> Worker:
        worker = self.start(*arguments, ranks=ranks, **environment)
        eventually(worker.is_ready, timeout_s=90)
        return worker

    def start_supervised(self, number: int) -> None:
        """So many workers, each of which is started again when it dies."""
        over = threading.Event()

        def supervise(worker: Worker) -> None:
            while not over.wait(0.05):
                if worker.process.poll() is not None:
                    self.restarts += 1
                    worker = self.start()

        for worker in [self.start() for _ in range(number)]:
            thread = threading.Thread(target=supervise, args=(worker,))
            thread.start()
            self.stack.callback(thread.join)
        self.stack.callback(over.set)

    def retry(self, job_id: str) -> subprocess.CompletedProcess[str]:
        """As a person does it."""
        command = [sys.executable, "-m", "h3render", "dead", "retry", job_id, "--url", self.redis_url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def rendered(self) -> list[str]:
        return self.trace.read_text().splitlines()

    def await_event(self, job_id: str, kind: type[Event], *, count: int = 1, timeout_s: float = 60) -> list[Event]:
        """So many events of a kind."""
        return eventually(
            lambda: found if len(found := self.events_of(job_id, kind)) >= count else None, timeout_s=timeout_s
        )

    def events_of(self, job_id: str, kind: type[Event]) -> list[Event]:
        return [event for event in self.client.job(job_id).news() if isinstance(event, kind)]

    def check_result(self, job_id: str) -> Result:
        """The one manifest; every object of it lies there as it says."""
        store = open_store(self.store_url)
        result = self.client.job(job_id).result(store)
        for piece in result.pieces:
            stored = store.stat(piece.key)
            assert stored is not None, piece.key
            assert (stored.size_bytes, stored.sha256) == (piece.size_bytes, piece.sha256)
        return result

    def first_in(self, queue: str) -> str | None:
        """The job that is next."""
        head = self.redis.lindex(f"rq:queue:{queue}", 0)
        return head and head.decode()

    def places(self) -> list[str]:
        return [entry.decode() for entry in self.redis.eval(PLACES, 0)]


def end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


MakeFarm = Callable[..., Farm]


@pytest.fixture
def farm(redis_url: str, file_store_url: str, tmp_path: Path) -> Iterator[Farm]:
    """On the shared Redis and a folder."""
    with ExitStack() as stack:
        yield Farm(redis_url, file_store_url, tmp_path, stack)


@pytest.fixture
def own_farm(redis_server: RedisServer, file_store_url: str, tmp_path: Path) -> Iterator[Farm]:
    """With a Redis of its own, to stop."""
    with ExitStack() as stack:
        yield Farm(redis_server.url, file_store_url, tmp_path, stack, server=redis_server)


@pytest.fixture
def watched(farm: Farm) -> Iterator[list[str]]:
    """Looks all the time that every job is in exactly one place. What it saw otherwise."""
    wrong: list[str] = []
    over = threading.Event()

    def watch() -> None:
        with Redis.from_url(farm.redis_url) as redis:
            look = redis.register_script(PLACES)
            while not over.wait(0.002):
                with suppress(RedisError):
                    answer = look()
                    if answer[:1] == [b"WRONG"]:
                        wrong.append(answer[1].decode())

    thread = threading.Thread(target=watch)
    thread.start()
    yield wrong
    over.set()
    thread.join()
    assert wrong == []
