"""A pod's log as RunPod streams it: server-sent events without an end, read until a deadline.

A stream that is cut is opened again from the time of the last line; lines that come twice by that are told once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import structlog

from infra.answers import LogLine, parse_answer
from infra.clock import Clock
from infra.errors import AnswerInvalid, ConnectionLost
from infra.transport import Params, Transport

MOST_LINE_BYTES = 1 << 20
REOPEN_S = 1.0  # between two streams

log = structlog.get_logger(__name__)


def read_lines(
    transport: Transport, clock: Clock, path: str, params: Params, *, for_s: float, since: datetime | None
) -> Iterator[LogLine]:
    """Raises ApiError if it cannot be opened."""
    end = clock.monotonic() + for_s
    last, told = since, Counter[LogLine]()  # the lines that were told of the last moment
    while (left_s := end - clock.monotonic()) > 0:
        again = told.copy()
        try:
            with transport.stream(path, {**params, **_resume_at(last)}, left_s) as chunks:
                for line in parse_events(_until(end, clock, chunks)):
                    if again[line] > 0:
                        again[line] -= 1
                        continue
                    told = told if line.ts == last else Counter()
                    last, told[line] = line.ts, told[line] + 1
                    yield line.model_copy(update={"line": transport.conceal(line.line)})
        except ConnectionLost as exc:
            if clock.monotonic() >= end:
                return
            log.warning("the log is opened again", path=path, why=str(exc))
        clock.sleep(max(0.0, min(REOPEN_S, end - clock.monotonic())))


def _resume_at(last: datetime | None) -> dict[str, str]:
    return {"since": last.astimezone(UTC).isoformat().replace("+00:00", "Z")} if last is not None else {}


def _until(end: float, clock: Clock, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        if clock.monotonic() >= end:
            return


def parse_events(chunks: Iterable[bytes]) -> Iterator[LogLine]:
    """Each line of data is one event, told at once: the empty line after it may be long in coming."""
    for line in split_lines(chunks):
        if line.startswith(b"data:"):
            yield parse_answer(LogLine, line.removeprefix(b"data:").strip(), "read logs")


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, however they are cut into chunks. Raises AnswerInvalid for one without an end."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in lines)
        if len(rest) > MOST_LINE_BYTES:
            raise AnswerInvalid(f"read logs: a line has more than {MOST_LINE_BYTES} bytes")
