"""One contender's turn: steps of it, timed one by one."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from h3.device import synchronize, take_peak


@dataclass(frozen=True, slots=True)
class Timed:
    """What some steps took."""

    step_s: tuple[float, ...]
    peak_bytes: int  # of GPU memory; 0 on the CPU


def time_steps(step: Callable[[], object], steps: int, device: torch.device) -> Timed:
    """After one that is not counted: the device is as warm as it was before another contender's turn."""
    step()
    synchronize(device)
    take_peak(device)
    seconds = []
    for _ in range(steps):
        begun = time.perf_counter()
        step()
        synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return Timed(tuple(seconds), take_peak(device))
