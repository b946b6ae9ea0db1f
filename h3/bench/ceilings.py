"""Measures what a device does at best, for the floors of a step's parts."""

import time
from collections.abc import Callable

import torch

from h3.bench.stopwatch import Stopwatch
from h3.bench.work import Ceilings
from h3.fp8 import multiply_fp8, probe_fp8, round_rows

_BURSTS, _RUNS = 4, 20
_REST_S = 0.3  # between two bursts: a GPU at its limit of power lowers its clock within some ten milliseconds


def measure_ceilings(device: torch.device) -> Ceilings:
    """Of a large product in each format, and of a large copy."""
    side, copied = (8192, 1 << 30) if device.type == "cuda" else (1024, 1 << 26)
    operations = 2.0 * side**3
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    bf16 = operations / _fastest_s(lambda: left @ right, device)
    fp8 = None
    if probe_fp8(device):
        rounded, weight = round_rows(left), round_rows(right)
        fp8 = operations / _fastest_s(lambda: multiply_fp8(*rounded, *weight), device)
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Ceilings(bf16, fp8, 2 * copied / _fastest_s(lambda: target.copy_(source), device))


def _fastest_s(run: Callable[[], object], device: torch.device) -> float:
    """One run of several bursts: a GPU that has rested takes some milliseconds to raise its clock."""
    seconds: list[float] = []
    for _ in range(_BURSTS):
        time.sleep(_REST_S)
        seconds += _time_burst(run, device)
    return min(seconds)


def _time_burst(run: Callable[[], object], device: torch.device) -> list[float]:
    watch = Stopwatch(device)
    for number in range(_RUNS if device.type == "cuda" else 2):
        watch.begin(str(number))
        run()
        watch.end(str(number))
    return list(watch.read().values())
