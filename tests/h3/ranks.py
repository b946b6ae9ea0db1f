"""Runs a function on real rank processes over Gloo, as tests of collectives need it."""

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

COLLECTIVE_TIMEOUT = timedelta(seconds=60)


def on_ranks(world_size: int, check: Callable[..., None], *arguments: object) -> None:
    """Call `check(group, *arguments)` on every rank; an exception of any of them fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (world_size, Path(folder) / "store", check, arguments), nprocs=world_size)


def _rank(rank: int, world_size: int, store: Path, check: Callable[..., None], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT
    )
    try:
        check(dist.group.WORLD, *arguments)
    finally:
        dist.destroy_process_group()
