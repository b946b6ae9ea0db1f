"""A worker's part of many renders at once, at a steady pace: real leases, events and objects, and no model.

Whatever is said to Redis is said again while that is away.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from jobs.lease import Leases
from jobs.queues import QueueName
from jobs.store import Store
from tests.jobs.http.rendering import Render
from tools.bench_service.board import Board
from tools.bench_service.measured import Plan

NAME = "bench"  # of our connections: all others are the service's
AGAIN_S, TRIES = 0.05, 1200  # a minute
LOOK_S = 0.05  # for jobs, where none waits
PREVIEW_EVERY = 4  # steps
SPREAD = 0.4  # of the renders' length, around their mean
END_LIMIT_S = 2.0


def connect(redis_url: str) -> Redis:
    """A client that insists."""
    return Redis.from_url(redis_url, client_name=NAME, retry=Retry(ConstantBackoff(AGAIN_S), TRIES))


class Players:
    """The threads. Each takes the next job when it has ended one."""

    def __init__(self, redis: Redis, store: Store, board: Board, plan: Plan) -> None:
        self._redis, self._store, self._board, self._plan = redis, store, board, plan
        self._leases, self._taking = Leases(redis), threading.Lock()
        self._over = threading.Event()
        self.accidents: list[str] = []
        # Daemons: one that insists would keep a run that is told to stop.
        self._threads = [threading.Thread(target=self._play, daemon=True) for _ in range(plan.players)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wherever they are."""
        self._over.set()
        for thread in self._threads:
            thread.join(END_LIMIT_S)

    def _play(self) -> None:
        try:
            while not (self._over.is_set() or self._board.is_closed):
                if (render := self._take()) is None:
                    self._over.wait(LOOK_S)
                else:
                    self._perform(render)
        except Exception as error:
            self.accidents.append(f"a player broke off: {type(error).__name__}: {error}")

    def _take(self) -> Render | None:
        with self._taking:
            [waiting] = self._leases.peek([QueueName.DEFAULT], 0, 1)
            if not waiting:
                return None
            acts = self._plan.job_s * self._plan.pace * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311  no secret
            render = Render(self._redis, self._store, waiting[0].job_id, steps=max(1, round(acts / 2)))
        self._board.note_begun(waiting[0].job_id)
        return render

    def _perform(self, render: Render) -> None:
        for act in script(render):
            if self._over.wait(1 / self._plan.pace):
                return
            act()
        self._board.note_ended(render.lease.job_id)


def script(render: Render) -> Iterator[Callable[[], None]]:
    """What is told, one after another: half of it steps."""
    for step in range(1, render.steps + 1):
        yield lambda step=step: render.step(step)
        if step % PREVIEW_EVERY == 0:
            yield lambda step=step: render.preview(step)
    segments = max(1, render.steps // 2)
    yield lambda: render.open_stream(segments)
    for _ in range(segments):
        yield render.segment
    yield render.finish


@contextmanager
def playing(redis: Redis, store: Store, board: Board, plan: Plan) -> Iterator[Players]:
    players = Players(redis, store, board, plan)
    players.start()
    try:
        yield players
    finally:
        players.stop()
