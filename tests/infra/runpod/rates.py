"""How many requests an account may send: windows of time, and the headers that tell what is left of them."""

import math
from dataclasses import dataclass, field

from tests.infra.runpod.answers import RateLimited


@dataclass(slots=True)
class Window:
    name: str
    quota: int
    length_s: int
    began_at: float = 0.0
    used: int = 0

    def count(self, now: float) -> None:
        if now >= self.began_at + self.length_s:
            self.began_at, self.used = now, 0
        self.used += 1

    def resets_in_s(self, now: float) -> int:
        return max(0, math.ceil(self.began_at + self.length_s - now))


@dataclass(slots=True)
class RateLimit:
    """Accounts differ: a test gives its own."""

    windows: list[Window] = field(
        default_factory=lambda: [
            Window("minute", 6_000, 60),
            Window("hour", 300_000, 3_600),
            Window("day", 5_000_000, 86_400),
        ]
    )

    def count(self, now: float) -> None:
        """Count one request. Raises RateLimited if it was one too many."""
        for window in self.windows:
            window.count(now)
        for window in self.windows:
            if window.used > window.quota:
                raise RateLimited(window.name, window.resets_in_s(now))

    def headers(self, now: float) -> dict[str, str]:
        policy = (f'"{window.name}";q={window.quota};w={window.length_s}' for window in self.windows)
        left = (
            f'"{window.name}";r={max(0, window.quota - window.used)};t={window.resets_in_s(now)}'
            for window in self.windows
        )
        return {"RateLimit-Policy": ", ".join(policy), "RateLimit": ", ".join(left)}
