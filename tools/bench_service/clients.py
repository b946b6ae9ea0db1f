"""All who use the service in a run: some submit, many poll, many follow."""

import asyncio
import json
import random
import time
from uuid import uuid4

from tools.bench_service.board import Board
from tools.bench_service.caller import Caller, Question
from tools.bench_service.check import doubt_list, doubt_video
from tools.bench_service.measured import Answer, Asked, Following, Plan
from tools.bench_service.service import TOKENS, Service
from tools.bench_service.streamer import Streamer
from tools.bench_service.wire import Wire

POLL_S = 1.0
LIST_EVERY = 20  # questions of a poller
SPARE_JOBS = 0.5  # that wait, of those that run
LOOK_S = 0.05
VIDEOS = "/v1/videos"
WISH = json.dumps({"prompt": "a red kite over the sea", "frames": 22}).encode()


class Crowd:
    """In one event loop."""

    def __init__(self, plan: Plan, service: Service, board: Board) -> None:
        self._plan, self._service, self._board = plan, service, board
        self._are_streams_over = False
        self.answers: list[Answer] = []
        self._streamers = [Streamer(self._caller(name), name, board, plan) for name in _share(plan.streams)]

    @property
    def followings(self) -> list[list[Following]]:
        """Of each streamer."""
        return [streamer.followings for streamer in self._streamers]

    async def run(self) -> None:
        """Until the time is up, and every stream that was begun has ended."""
        async with asyncio.TaskGroup() as tasks:
            for name in TOKENS:
                tasks.create_task(self._submit(name))
            for name in _share(self._plan.pollers):
                tasks.create_task(self._poll(name))
            streams = [tasks.create_task(streamer.run()) for streamer in self._streamers]
            await asyncio.sleep(self._plan.seconds)
            self._board.close()
            await asyncio.wait(streams)
            self._are_streams_over = True

    def _caller(self, name: str) -> Caller:
        return Caller(Wire(self._service.host, self._service.port, TOKENS[name]), self.answers)

    async def _submit(self, name: str) -> None:
        """Keep some jobs open, so that another begins whenever one ends."""
        wanted = max(1, round(self._plan.players * (1 + SPARE_JOBS) / len(TOKENS)))
        while not self._board.is_closed:
            if self._board.count_open(name) < wanted:
                await self._submit_one(name)
            else:
                await asyncio.sleep(LOOK_S)

    async def _submit_one(self, name: str) -> None:
        """With a key, so that it may be repeated."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
        question = Question(Asked.SUBMIT, VIDEOS, "POST", headers, WISH)
        caller = self._caller(name)  # a new one: the service closes what is idle for seconds
        while not self._board.is_closed:
            if body := await caller.ask(question, doubt_video):
                self._board.note_submitted(name, json.loads(body)["id"])
                break
        caller.wire.cut()

    async def _poll(self, name: str) -> None:
        """Once a second: a job of theirs until it has ended, then another one; now and then the list."""
        caller, job_id = self._caller(name), None
        await asyncio.sleep(random.uniform(0, POLL_S))  # noqa: S311  no secret
        asked = random.randrange(LIST_EVERY)  # noqa: S311
        while not self._are_streams_over:
            next_at, asked = time.monotonic() + POLL_S, asked + 1
            if asked % LIST_EVERY == 0:
                await caller.ask(Question(Asked.LIST, VIDEOS), doubt_list)
            elif job_id := job_id or self._board.pick_open(name):
                job_id = await self._poll_one(caller, job_id)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        caller.wire.cut()

    @staticmethod
    async def _poll_one(caller: Caller, job_id: str) -> str | None:
        """The job, unless it has ended."""
        body = await caller.ask(Question(Asked.POLL, f"{VIDEOS}/{job_id}"), lambda body: doubt_video(body, job_id))
        return None if body and json.loads(body)["completed_at"] is not None else job_id


def _share(clients: int) -> list[str]:
    """Whose each of them is."""
    names = list(TOKENS)
    return [names[number % len(names)] for number in range(clients)]
