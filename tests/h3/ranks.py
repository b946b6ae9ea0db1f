"""Runs a function on real rank processes over Gloo, as tests of collectives need it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from worker.mgpu import MGPUController, MGPURunner


class Check(Protocol):
    """Runs on every rank, with the group and what else it was given."""

    def __call__(self, group: dist.ProcessGroup, *arguments: object) -> None: ...


class Call(Protocol):
    """Runs a check on the first `world_size` ranks, or on all; what any of them raises fails the test."""

    def __call__(self, check: Check, *arguments: object, world_size: int | None = None) -> None: ...


class CheckRunner(MGPURunner):
    """Each job is a call of a function with a group and its arguments."""

    def setup(self) -> None:
        torch.set_num_threads(1)  # ranks share the machine's cores

    def __call__(self, *, check: Check, arguments: tuple[object, ...], world_size: int) -> Iterator[None]:
        group = self.groups.transformer_group if world_size == self.world_size else first_ranks(world_size)
        if self.rank < world_size:
            check(group, *arguments)
        yield


@cache
def first_ranks(world_size: int) -> dist.ProcessGroup:
    """A group of fewer ranks than there are; made by all of them together."""
    return dist.new_group(list(range(world_size)))


def device_of(group: dist.ProcessGroup) -> torch.device:
    """Where this rank's tensors of the group are."""
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")


@contextmanager
def running_ranks(most: int, backend: Literal["gloo", "nccl"] = "gloo") -> Iterator[Call]:
    """Starts so many ranks."""
    with MGPUController(CheckRunner, num_gpus=most, backend=backend, collective_timeout=60) as controller:
        controller.start()

        def call(check: Check, *arguments: object, world_size: int | None = None) -> None:
            for _ in controller.stream(check=check, arguments=arguments, world_size=world_size or most, timeout=60):
                pass

        yield call
