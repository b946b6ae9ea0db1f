"""A short test of a rank's device and of the way to its peers, before any job depends on them: results are known."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

SIDE = 256  # of the matrices: all values are whole numbers below 2 ** 24, so fp32 is exact


class SelfTestError(RuntimeError):
    """This rank's device computes wrong, or what arrives from its peers is wrong."""


def check_rank(device: torch.device, group: ProcessGroup, rank: int) -> None:
    """Collective over `group`. Raises SelfTestError."""
    exact: dict[str, Any] = {"dtype": torch.float32, "device": device}  # the default may be the runner's
    counted = torch.arange(SIDE, **exact).expand(SIDE, SIDE)
    product = counted @ torch.ones(SIDE, SIDE, **exact)
    _require(product, SIDE * (SIDE - 1) / 2, f"a product on {device}")
    everyone = torch.full((SIDE, SIDE), float(rank + 1), **exact)
    dist.all_reduce(everyone, group=group)
    world_size = dist.get_world_size(group)
    _require(everyone, world_size * (world_size + 1) / 2, f"a sum over {world_size} ranks, on rank {rank}")


def _require(values: torch.Tensor, expected: float, what: str) -> None:
    lowest, highest = values.min().item(), values.max().item()
    if lowest != expected or highest != expected:
        raise SelfTestError(
            f"{what} gives {lowest:g} to {highest:g}, not {expected:g}: the device or its links are bad"
        )
