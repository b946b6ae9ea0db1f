"""Time, as seconds since 1970: one that a test moves, and the real one. And its RFC 3339 form."""

import re
import time
from datetime import UTC, datetime

MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


class ManualClock:
    """Stands still until a test moves it."""

    def __init__(self, start: float = MIDNIGHT) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class WallClock:
    """For child processes: give the pods a course of fractions of a second."""

    def now(self) -> float:
        return time.time()

    def advance(self, seconds: float) -> None:
        raise TypeError("the real clock moves by itself: wait, or use a ManualClock")


Clock = ManualClock | WallClock


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def is_rfc3339(text: str) -> bool:
    if RFC3339.fullmatch(text) is None:
        return False
    try:
        parse_rfc3339(text)
    except ValueError:
        return False
    return True


def parse_rfc3339(text: str) -> float:
    return datetime.fromisoformat(text.upper()).timestamp()
