"""Measures what a device does at best, for the floors of a step's parts."""

import time
from collections.abc import Callable

import torch

from h3.bench.work import Ceilings
from h3.fp8 import multiply_fp8, probe_fp8, round_rows

_RUNS = 12
_REST_S = 0.05  # between two runs: a GPU at its limit of power lowers its clock within milliseconds


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
    seconds = []
    for _ in range(_RUNS):
        time.sleep(_REST_S)
        seconds.append(_time(run, device))
    return min(seconds)


def _time(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun
    begun_at, ended_at = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun_at.record()
    run()
    ended_at.record()
    ended_at.synchronize()
    return float(begun_at.elapsed_time(ended_at)) / 1000
