"""A pod's log as Server-Sent Events: which lines a reader gets, and how they are written."""

import json
from dataclasses import dataclass

from tests.infra.runpod.clock import parse_rfc3339, rfc3339

DEFAULT_TAIL = 100


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    at: float
    number: int  # of the pod's lines, from 1
    source: str  # "container" or "system"
    text: str

    def event(self) -> bytes:
        time = rfc3339(self.at)
        content = json.dumps({"ts": time, "source": self.source, "line": self.text}, ensure_ascii=False)
        return f"id: {time}/{self.number:012d}\ndata: {content}\n\n".encode()


@dataclass(slots=True)
class Reader:
    """One stream. Its `next_lines` are those that it did not have yet."""

    source: str | None
    tail: int
    since: float | None
    after: tuple[float, int] | None  # the time and number of the last line that the client has
    _had: set[LogLine] | None = None

    def next_lines(self, lines: list[LogLine]) -> list[LogLine]:
        wanted = [line for line in lines if self.source in (None, line.source)]
        if self._had is None:
            self._had = set(wanted)
            return self._backfill(wanted)
        new = [line for line in wanted if line not in self._had]
        self._had.update(new)
        return new

    def _backfill(self, lines: list[LogLine]) -> list[LogLine]:
        if self.after is not None:
            return [line for line in lines if (line.at, line.number) > self.after]
        if self.since is not None:
            return [line for line in lines if line.at >= self.since]
        return lines[-self.tail :] if self.tail else []


def reader(query: dict, last_event_id: str | None) -> Reader:
    """From a request: Last-Event-ID goes before `since`, and that before `tail`."""
    since = parse_rfc3339(query["since"]) if "since" in query else None
    after = _position(last_event_id) if last_event_id else None
    return Reader(query.get("source"), query.get("tail", DEFAULT_TAIL), since, after)


def _position(event_id: str) -> tuple[float, int]:
    time, _, number = event_id.partition("/")
    return parse_rfc3339(time), int(number or 0)
