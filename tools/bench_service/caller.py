"""One who asks the service, notes every answer, and goes by what a refusal says. Judges no more than the answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from tools.bench_service.check import doubt_refusal
from tools.bench_service.measured import Answer, Asked, Told
from tools.bench_service.sse import read_told
from tools.bench_service.wire import Wire, WireBroken

AFTER_BREAK_S = 1.0  # before one asks again who got no answer


@dataclass(frozen=True, slots=True)
class Question:
    asked: Asked
    path: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Caller:
    """With a connection of its own."""

    def __init__(self, wire: Wire, answers: list[Answer]) -> None:
        self.wire, self._answers = wire, answers

    async def ask(self, question: Question, doubt: Callable[[bytes], str]) -> bytes:
        """The body of a right answer, else nothing.

        doubt  tells what is wrong with the body of a 200
        """
        sent_at, body = time.time(), b""
        try:
            await self._send(question)
            body = await self.wire.read()
        except WireBroken as broken:
            await self._note_break(question, sent_at, broken)
            return b""
        flaw = doubt(body) if self.wire.status == 200 else self._doubt_status(body)
        self._note(question, sent_at, time.time(), flaw)
        await self._heed()
        return body if self.wire.status == 200 and not flaw else b""

    async def listen(self, question: Question) -> AsyncIterator[Told]:
        """What a stream tells until it ends; nothing if there is none."""
        sent_at = time.time()
        try:
            await self._send(question)
            flaw = "" if self.wire.status == 200 else self._doubt_status(await self.wire.read())
            self._note(question, sent_at, self.wire.headed_at, flaw)
            if self.wire.status == 200:
                async for told in read_told(self.wire.pieces()):
                    yield told
        except WireBroken as broken:
            await self._note_break(question, sent_at, broken)
        else:
            await self._heed()

    async def _send(self, question: Question) -> None:
        await self.wire.ask(question.method, question.path, question.headers, question.body)

    def _doubt_status(self, body: bytes) -> str:
        return doubt_refusal(self.wire.headers, body) if self.wire.status == 503 else ""

    def _note(self, question: Question, sent_at: float, came_at: float, flaw: str) -> None:
        self._answers.append(Answer(question.asked, sent_at, came_at - sent_at, self.wire.status, flaw))

    async def _note_break(self, question: Question, sent_at: float, broken: WireBroken) -> None:
        self.wire.cut()
        self._answers.append(Answer(question.asked, sent_at, time.time() - sent_at, 0, str(broken)))
        await asyncio.sleep(AFTER_BREAK_S)

    async def _heed(self) -> None:
        """Come again no sooner than a refusal says."""
        wait = self.wire.headers.get("retry-after", "")
        if self.wire.status == 503 and wait.isdecimal():
            await asyncio.sleep(int(wait))
