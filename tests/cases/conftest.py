"""Workers as child processes, with leases of seconds, and a watch over where every job is."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError
from typer.testing import Result

import h3render
from jobs.client import Client
from jobs.events import Event
from jobs.result import Result as JobResult
from jobs.result import read_result
from jobs.store import open_store
from jobs.workers import WorkerRecord, WorkerState, read_workers
from tests.cases.runners import HOLD, TRACE, Script
from tests.in_process import call
from tests.servers import DIES_WITH_PARENT, RedisServer, running_redis
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
        return self.starts > 0

    @property
    def starts(self) -> int:
        """How often it has been ready."""
        return self.log.read_text().count("ready for jobs")

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop_as_docker_does(self, grace_s: float = 10) -> None:
        """SIGTERM, and SIGKILL after that time. It must not come to that, and no rank may be left."""
        self.send(signal.SIGTERM)
        self.await_good_end(grace_s)

    def await_good_end(self, timeout_s: float = 10) -> None:
        """Whoever told it to end, it does so in time, with its ranks, and says so to whoever has started it."""
        ranks = self.rank_pids()
        try:
            self.process.wait(timeout_s)
        finally:
            self.kill_group()
        told = self.log.read_text()
        assert self.process.returncode == 0, told[-2000:]
        assert "leaving" in told
        assert [pid for pid in ranks if is_rank(pid)] == []

    def rank_pids(self) -> list[int]:
        """Of its ranks that are there, by asking the system."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        return sorted(pid for pid in pids if is_rank(pid))


def is_rank(pid: int) -> bool:
    """Whether there is such a process, no zombie, and it is one."""
    try:
        return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


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
        self._hold = self.folder / "hold"

    def start(self, *arguments: str, ranks: int = 1, launcher: Sequence[str] = (), **environment: str) -> Worker:
        """A worker. What is given comes after, and so in place of, what else it would be told."""
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        command = [*DIES_WITH_PARENT, *launcher, sys.executable, "-m", "h3render", "worker"]
        command += ["--checkpoint", str(self.folder)]
        command += ["--runner", "tests.cases.runners:Scripted", "--ranks", str(ranks), "--backend", "gloo"]
        command += ["--url", self.redis_url, "--store", self.store_url, *arguments]
        settings = {
            TRACE: str(self.trace),
            HOLD: str(self._hold),
            "H3_LEASE_S": str(self.lease_s),
            "H3_LEAST_FREE_BYTES": "0",
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=os.environ | settings | environment, stdout=output, stderr=output, start_new_session=True
            )
        self.stack.callback(end, process)
        self.workers.append(Worker(process, log))
        return self.workers[-1]

    def start_ready(self, *arguments: str, ranks: int = 1, launcher: Sequence[str] = (), **environment: str) -> Worker:
        worker = self.start(*arguments, ranks=ranks, launcher=launcher, **environment)
        eventually(lambda: worker.is_ready() or worker.process.poll() is not None, timeout_s=90, interval_s=0.05)
        assert worker.is_ready(), worker.log.read_text()[-2000:]
        return worker

    @property
    def living(self) -> list[Worker]:
        """Those of the workers that have not ended."""
        return [worker for worker in self.workers if worker.process.poll() is None]

    def keep_ready(self, *arguments: str, ranks: int = 1, **environment: str) -> Worker:
        """The last one that was started; another if that is gone."""
        if self.workers and self.workers[-1].process.poll() is None:
            return self.workers[-1]
        return self.start_ready(*arguments, ranks=ranks, **environment)

    @contextmanager
    def replacing_fleet(self, worker: Worker) -> Iterator[None]:
        """What happens meanwhile costs a fleet: other ranks, and none of the old, run the next job in this process."""
        ranks, starts = worker.rank_pids(), worker.starts
        yield
        eventually(lambda: worker.starts == starts + 1, timeout_s=60)
        assert self.client.submit(Script(name="next").request()).wait(timeout_s=30).attempt == 1
        assert worker.process.poll() is None
        assert not set(worker.rank_pids()) & set(ranks)
        assert [pid for pid in ranks if is_rank(pid)] == []

    @contextmanager
    def supervising(self, number: int) -> Iterator[None]:
        """So many workers more, each of which is started again when it dies."""
        over = threading.Event()

        def supervise(worker: Worker) -> None:
            while not over.wait(0.05):
                if worker.process.poll() is not None:
                    self.restarts += 1
                    worker = self.start()

        supervisors = [threading.Thread(target=supervise, args=(self.start(),)) for _ in range(number)]
        for supervisor in supervisors:
            supervisor.start()
        try:
            yield
        finally:
            over.set()
            for supervisor in supervisors:
                supervisor.join()

    def run(self, *arguments: str) -> Result:
        """The command, as a person gives it, but in this process: one of its own would import for a second."""
        return call(h3render.app, *arguments, "--url", self.redis_url)

    def list_workers(self) -> list[WorkerRecord]:
        """As the command lists them."""
        told = self.run("workers", "--json")
        assert told.exit_code == 0, told.stderr
        return [WorkerRecord.model_validate(worker) for worker in json.loads(told.stdout)]

    def states(self) -> list[WorkerState]:
        return [worker.state for worker in read_workers(self.redis)]

    def rendered(self, name: str = "") -> list[str]:
        """Steps and segments, in their order; of one job, if a name is given."""
        return [line for line in self.trace.read_text().splitlines() if line.startswith(name)]

    @contextmanager
    def holding(self, part: str) -> Iterator[None]:
        """Let uploads wait whose key contains this. One that does is in what was rendered as `held NAME`."""
        self._hold.write_text(part)
        try:
            yield
        finally:
            self._hold.unlink()

    def await_event(self, job_id: str, kind: type[Event], *, count: int = 1, timeout_s: float = 60) -> list[Event]:
        """So many events of a kind."""
        return eventually(
            lambda: found if len(found := self.events_of(job_id, kind)) >= count else None, timeout_s=timeout_s
        )

    def events_of(self, job_id: str, kind: type[Event]) -> list[Event]:
        return [event for event in self.client.job(job_id).news() if isinstance(event, kind)]

    def check_result(self, job_id: str) -> JobResult:
        """The one manifest; every object of it lies there as it says."""
        store = open_store(self.store_url)
        result = read_result(store, job_id)
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


@pytest.fixture(scope="module")
def lasting_farm(
    request: pytest.FixtureRequest, need_redis: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Farm]:
    """Of all tests of a file, which share its workers; the file may name its lease. Redis may be stopped."""
    folder, lease_s = tmp_path_factory.mktemp("farm"), getattr(request.module, "LEASE_S", LEASE_S)
    with running_redis(append_only=True) as server, ExitStack() as stack:
        yield Farm(server.url, (folder / "store").as_uri(), folder, stack, lease_s=lease_s, server=server)


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Looks all the time that every job is in exactly one place. What it saw otherwise."""
    farm: Farm = request.getfixturevalue("lasting_farm" if "lasting_farm" in request.fixturenames else "farm")
    wrong: list[str] = []
    over = threading.Event()

    def watch() -> None:
        with Redis.from_url(farm.redis_url) as redis:
            look = redis.register_script(PLACES)
            while not over.wait(0.005):
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
