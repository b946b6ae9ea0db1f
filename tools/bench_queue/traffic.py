"""What Redis has been asked to do. Commands within scripts count too."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from redis import Redis


@dataclass(frozen=True, slots=True)
class Traffic:
    """Between two looks."""

    seconds: float
    calls: Mapping[str, int]  # by command
    server_s: float  # that the server needed for them

    @property
    def calls_per_s(self) -> float:
        return sum(self.calls.values()) / self.seconds

    def describe(self) -> dict[str, object]:
        most = sorted(self.calls, key=lambda command: -self.calls[command])
        return {
            "seconds": round(self.seconds, 1),
            "calls_per_s": {command: round(self.calls[command] / self.seconds, 2) for command in most},
            "server_busy_percent": round(100 * self.server_s / self.seconds, 3),
        }


class TrafficMeter:
    """Counts from its making on."""

    def __init__(self, redis: Redis) -> None:
        self._redis, self._since, self._before = redis, time.monotonic(), _read(redis)

    def read(self) -> Traffic:
        seconds, after = time.monotonic() - self._since, _read(self._redis)
        calls = {name: count - self._before.get(name, (0, 0))[0] for name, (count, _) in after.items()}
        spent_us = sum(us - self._before.get(name, (0, 0))[1] for name, (_, us) in after.items())
        calls["info"] -= 1  # our own
        return Traffic(seconds, {name: count for name, count in calls.items() if count}, spent_us / 1e6)


def _read(redis: Redis) -> dict[str, tuple[int, int]]:
    """Calls and microseconds of each command so far."""
    stats = cast(dict[str, dict[str, int]], redis.info("commandstats"))
    return {name.removeprefix("cmdstat_"): (entry["calls"], entry["usec"]) for name, entry in stats.items()}
