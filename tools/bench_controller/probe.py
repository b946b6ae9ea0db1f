"""What the ranks do while the controller is measured. A job names one of the probe's methods."""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from worker.mgpu import MGPURunner, RunnerError

PARKED_S = 300  # longer than anybody waits
SMALL, LARGE = 1 << 10, 50 << 10  # float32 elements: 4 KB travel within the message, 200 KB beside it


class Probe(MGPURunner):
    def setup(self, *, ballast_bytes: int = 0) -> None:
        self._ballast = torch.ones(ballast_bytes, dtype=torch.uint8, device=self.device)

    def __call__(self, *, task: str, **kwargs: Any) -> Iterator[Any]:
        yield from getattr(self, task)(**kwargs)

    def yield_once(self) -> Iterator[int]:
        if self.rank == 0:
            yield 0

    def echo(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        if self.rank == 0:
            yield tensor

    def sleep(self) -> Iterator[int]:
        yield os.getpid()
        time.sleep(PARKED_S)

    def sleep_holding_gil(self) -> Iterator[int]:
        yield os.getpid()
        ctypes.PyDLL(None).sleep(PARKED_S)  # unlike CDLL it keeps the GIL

    def wait_in_collective(self) -> Iterator[int]:
        self._sum()  # connects the group: what follows waits in a collective, not in its set-up
        yield os.getpid()
        if self._is_last:
            time.sleep(PARKED_S)
        self._sum()

    def hang_beside_yields(self) -> Iterator[int]:
        if self.rank == 0:
            time.sleep(PARKED_S)
        while True:
            yield self.rank

    def raise_beside_collective(self) -> Iterator[float]:
        self._sum()
        if not self._is_last:
            self._sum()
        time.sleep(0.5)  # the others are in the collective by now
        yield time.monotonic()
        raise KeyError("unexpected")

    def yield_unpicklable(self) -> Iterator[object]:
        if self._is_last:
            yield time.monotonic()
            yield threading.Lock()

    def yield_mixed(self, index: int, tensor: torch.Tensor, refuse: bool) -> Iterator[object]:
        """One job of the soak: everything in it says `index`."""
        yield index
        if refuse:
            raise RunnerError(f"job {index}")
        yield f"job {index}"
        yield {"small": torch.full((SMALL,), float(index)), "large": torch.full((LARGE,), float(index))}
        yield {"input": tensor.clone()}  # a CUDA tensor on a GPU

    @property
    def _is_last(self) -> bool:
        return self.rank == self.world_size - 1

    def _sum(self) -> None:
        dist.all_reduce(torch.ones(1, device=self.device), group=self.groups.transformer_group)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
