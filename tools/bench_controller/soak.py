"""The row about a long life: thousands of jobs of all kinds, and what they leave behind."""

import gc
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch

from tools.bench_controller.fleets import JOB_LIMIT_S, Fleets
from tools.bench_controller.measured import Measured, read_to_end
from tools.bench_controller.probe import LARGE, SMALL
from tools.bench_controller.processes import count_descriptors, count_shared_memory, resident_bytes
from worker.mgpu import MGPUController, SymmetricRunnerError

REFUSED_EVERY = 10
GROWTH_LIMIT = 0.01


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of the parent, then of each rank."""

    rss_bytes: tuple[int, ...]
    descriptors: tuple[int, ...]
    shared_memory: int  # entries of /dev/shm


def measure_soak(fleets: Fleets, *, jobs: int) -> Measured:
    """Compares the footprint at the end with that after the first tenth, when pools and caches are filled."""
    controller = fleets.fresh()
    warm_up = jobs // 10
    begun = time.perf_counter()
    devices = ["cpu", "cpu", "cuda", "cuda"] if fleets.setting.on_gpus else ["cpu"]
    wrong = _count_wrong(controller, devices, range(warm_up))
    early = _take_footprint(controller)
    wrong += _count_wrong(controller, devices, range(warm_up, jobs))
    late = _take_footprint(controller)
    growth = [after / before - 1 for before, after in zip(early.rss_bytes, late.rss_bytes, strict=True)]
    claims = {
        "every job is right": wrong == 0,
        "RSS grows by less than 1 %": max(growth) < GROWTH_LIMIT,
        "descriptors as before": early.descriptors == late.descriptors,
        "shared memory as before": early.shared_memory == late.shared_memory,
    }
    details = {"jobs": jobs, "seconds": time.perf_counter() - begun, "early": asdict(early), "late": asdict(late)}
    return Measured((max(growth),), claims, details)


def _count_wrong(controller: MGPUController, devices: Sequence[str], indices: Iterable[int]) -> int:
    return sum(not _runs_right(controller, devices[index % len(devices)], index) for index in indices)


def _runs_right(controller: MGPUController, device: str, index: int) -> bool:
    refuse = index % REFUSED_EVERY == REFUSED_EVERY - 1
    tensor = torch.full((LARGE if index % 2 else SMALL,), float(index), device=device)
    stream = controller.stream(task="yield_mixed", index=index, tensor=tensor, refuse=refuse, timeout=JOB_LIMIT_S)
    ending = read_to_end(stream)
    yields = len(controller.status().ranks) * (1 if refuse else 4)
    ends_right = isinstance(ending.error, SymmetricRunnerError) if refuse else ending.error is None
    return ends_right and len(ending.items) == yields and all(_says(item, index) for item in ending.items)


def _says(item: object, index: int) -> bool:
    if isinstance(item, dict):
        return all(bool((tensor == index).all()) for tensor in item.values())
    return item in (index, f"job {index}")


def _take_footprint(controller: MGPUController) -> Footprint:
    gc.collect()
    pids = [os.getpid(), *(rank.pid for rank in controller.status().ranks)]
    return Footprint(
        tuple(resident_bytes(pid) for pid in pids),
        tuple(count_descriptors(pid) for pid in pids),
        count_shared_memory(),
    )
