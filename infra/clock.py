"""Time and chance as arguments, so that whoever calls decides about both."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """The machine's own, unless something else is given."""

    now: Callable[[], datetime] = _now  # in UTC, for what is written down
    monotonic: Callable[[], float] = time.monotonic  # seconds, for deadlines
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random  # from 0 to 1, for pauses that do not fall together
