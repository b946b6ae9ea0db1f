"""One who follows job after job, each from its first event to its last, over as many connections as that takes."""

import asyncio
import time

from jobs.events import Canceled, Dead, Failed, Finished
from tools.bench_service.board import Board
from tools.bench_service.caller import Caller, Question
from tools.bench_service.measured import Asked, Following, Heard, Plan, Told

LAST = tuple(kind.model_fields["kind"].default for kind in (Finished, Failed, Canceled, Dead))
LOOK_S = 0.05  # for another job
AGAIN_S = 1.0  # as the stream's `retry` says


class Streamer:
    """It cuts its connection now and then, as a client whose network goes away."""

    def __init__(self, caller: Caller, owner: str, board: Board, plan: Plan) -> None:
        self._caller, self._owner, self._board, self._plan = caller, owner, board, plan
        self._heard = 0  # over all jobs
        self.followings: list[Following] = []

    async def run(self) -> None:
        """Until nothing more is begun; what it has begun to follow, it follows to the end."""
        while not self._board.is_closed:
            job_id = self._board.pick_running(self._owner, {following.job_id for following in self.followings})
            if job_id is None:
                await asyncio.sleep(LOOK_S)
            else:
                await self._follow(Following(job_id))

    async def _follow(self, following: Following) -> None:
        self.followings.append(following)
        while not following.is_over and await self._listen(following):
            pass
        if following.is_over:
            await self._caller.ask(self._question(Asked.END, following), lambda _: "a stream after the last event")

    async def _listen(self, following: Following) -> bool:
        """On one connection; whether there is reason to come again."""
        wire = self._caller.wire
        async for told in self._caller.listen(self._question(Asked.STREAM, following)):
            self._take(following, told)
            if self._heard % self._plan.cut_every == 0 and not following.is_over:
                following.cuts += 1
                wire.cut()
                return True
        if wire.status == 200 and not following.is_over:
            following.broken += 1
            await asyncio.sleep(AGAIN_S)
        return wire.status in (0, 200, 503)

    def _take(self, following: Following, told: Told) -> None:
        self._heard += 1
        following.heard.append(Heard(told, time.time(), self._caller.wire.headed_at))
        following.is_over = told.kind in LAST

    @staticmethod
    def _question(asked: Asked, following: Following) -> Question:
        headers = {"Last-Event-ID": following.last_id} if following.heard else {}
        return Question(asked, f"/v1/videos/{following.job_id}/events", headers=headers)
