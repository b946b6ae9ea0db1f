"""Splits time into named laps, which add up to all of it."""

import time
from dataclasses import dataclass, field

import torch

from h3.device import synchronize


@dataclass(slots=True)
class Laps:
    """Seconds by name, in the order that they were taken."""

    device: torch.device  # whose work belongs to the lap that has asked for it
    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def end(self, name: str) -> None:
        """Of what was done since the last one."""
        synchronize(self.device)
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
