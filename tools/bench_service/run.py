"""A run, from the start of the servers to all that it gave. Whatever it starts ends with it."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

import uvloop
from redis import Redis
from redis.exceptions import RedisError

from jobs.events import EVENTS_KEY
from jobs.store import open_store
from tests.servers import RedisServer, running_redis, short_folder
from tools.bench_service.board import Board
from tools.bench_service.clients import Crowd
from tools.bench_service.measured import Outage, Plan, Run, Told, Usage
from tools.bench_service.players import NAME, connect, playing
from tools.bench_service.service import Service, serving

SAMPLE_S = 0.5
REST_S = 45.0  # beyond the longest job, for streams to end


class Meter:
    """Looks at the service while somebody waits."""

    def __init__(self, service: Service, redis: Redis) -> None:
        self._service, self._redis = service, redis
        self._began_cpu_s, self._began_wait_s = service.cpu_s(), service.cpu_wait_s()
        self._connections = 0

    def wait(self, seconds: float, thread: threading.Thread) -> None:
        """No longer than the thread lives."""
        until = time.monotonic() + seconds
        while thread.is_alive() and (left := until - time.monotonic()) > 0:
            self._look()
            thread.join(min(SAMPLE_S, left))

    def _look(self) -> None:
        with suppress(RedisError):
            clients = self._redis.client_list()
            self._connections = max(self._connections, sum(client["name"] != NAME for client in clients))

    def read(self) -> Usage:
        service = self._service
        return Usage(
            service.cpu_s() - self._began_cpu_s,
            service.cpu_wait_s() - self._began_wait_s,
            service.rss_peak_bytes(),
            self._connections,
        )


def run(plan: Plan) -> Run:
    """Load, a restart in its middle, and what all have got."""
    with ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        server = stack.enter_context(running_redis(append_only=True))
        redis = stack.enter_context(connect(server.url))
        store_url = (folder / "store").as_uri()
        service = stack.enter_context(serving(folder, server.url, store_url))
        board, meter = Board(), Meter(service, redis)
        players = stack.enter_context(playing(redis, open_store(store_url), board, plan))
        gc.freeze()  # what is imported by now: to look through it takes tenths of a second
        crowd, accidents, own_cpu_s = Crowd(plan, service, board), players.accidents, time.process_time()
        began_at = time.time()
        thread = _start(crowd, accidents)
        meter.wait(plan.seconds / 2, thread)
        outage = _restart(server, plan.down_s)
        meter.wait(plan.seconds / 2 + 2 * plan.job_s + REST_S, thread)
        ended_at, own_cpu_s = time.time(), time.process_time() - own_cpu_s
        if thread.is_alive():
            accidents.append("the clients did not end in time")
        return Run(
            began_at,
            ended_at,
            outage,
            answers=list(crowd.answers),
            followings=crowd.followings,
            logs=_read_logs(redis, {following.job_id for each in crowd.followings for following in each}),
            jobs=board.count_ended(),
            accidents=[*accidents, *service.accidents()],
            usage=meter.read(),
            own_cpu_s=own_cpu_s,
            redis=_describe(redis),
        )


def _start(crowd: Crowd, accidents: list[str]) -> threading.Thread:
    """The clients, in a thread of theirs: the main one restarts Redis, whose processes end with their thread."""

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(crowd.run())
        except Exception as error:
            accidents.append(f"the clients broke off: {type(error).__name__}: {error}")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _restart(server: RedisServer, down_s: float) -> Outage:
    """In good order: it has all its data when it comes again."""
    stopped_at = time.time()
    server.stop()
    time.sleep(max(0.0, stopped_at + down_s - time.time()))
    server.start()
    return Outage(stopped_at, time.time())


def _read_logs(redis: Redis, job_ids: Iterable[str]) -> Mapping[str, Sequence[Told]]:
    """What was told of each job, by the records themselves."""
    return {job_id: _read_log(redis, job_id) for job_id in job_ids}


def _read_log(redis: Redis, job_id: str) -> list[Told]:
    entries = redis.xrange(EVENTS_KEY.format(job_id=job_id))
    return [Told(entry.decode(), json.loads(fields[b"event"])["kind"]) for entry, fields in entries]


def _describe(redis: Redis) -> str:
    facts = redis.info("server")
    name = facts.get("server_name", "redis")
    return f"{name} {facts[f'{name}_version']}"
