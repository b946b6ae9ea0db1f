"""Which device each rank gets, and that no two fleets of this process share one unasked."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Backend = Literal["nccl", "gloo"]

_claimed: set[torch.device] = set()  # by the fleets of this process
_claims_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Placement:
    """What the caller asked for. Checked when made; touches no GPU before `resolve`."""

    num_gpus: int | None
    devices: Sequence[int] | None
    backend: Backend

    def __post_init__(self) -> None:
        if self.backend not in ("nccl", "gloo"):
            raise ValueError(f"backend must be 'nccl' or 'gloo', got {self.backend!r}")
        if self.num_gpus is not None and self.devices is not None:
            raise ValueError("num_gpus and devices are mutually exclusive: give one of them")
        # Not guessed from a missing GPU: a machine whose driver broke would render on its CPU for days.
        if self.backend == "gloo" and self.num_gpus is None:
            raise ValueError("backend='gloo' runs on the CPU: say how many ranks with num_gpus")
        if self.num_gpus is not None and (type(self.num_gpus) is not int or self.num_gpus <= 0):
            raise ValueError(f"num_gpus must be a positive int, got {self.num_gpus!r}")
        if self.devices is not None:
            _require_indices(self.devices)

    def resolve(self) -> tuple[torch.device, ...]:
        """The device of every rank, in rank order. Raises ValueError for one that this process does not see."""
        if self.backend == "gloo":
            assert self.num_gpus is not None
            return (torch.device("cpu"),) * self.num_gpus
        visible = torch.cuda.device_count()
        if visible == 0:
            raise ValueError("no CUDA device is visible; backend='gloo' runs the ranks on the CPU")
        indices = self.devices or range(visible if self.num_gpus is None else self.num_gpus)
        absent = [index for index in indices if index >= visible]
        if absent:
            raise ValueError(f"no such device: {absent}; {visible} are visible to this process")
        return tuple(torch.device("cuda", index) for index in indices)


def _require_indices(devices: Sequence[int]) -> None:
    if not devices or any(type(index) is not int or index < 0 for index in devices):
        raise ValueError(f"devices must be non-negative ints, at least one, got {devices!r}")
    if len(set(devices)) != len(devices):
        raise ValueError(f"devices must differ: each GPU runs one rank, got {devices!r}")


class DeviceClaim:
    """The GPUs of one fleet, until released. The CPU is for everybody."""

    def __init__(self, devices: Iterable[torch.device], *, may_share: bool) -> None:
        self._devices = {device for device in devices if device.type == "cuda"}
        with _claims_lock:
            taken = sorted(device.index for device in self._devices & _claimed)
            if taken and not may_share:
                raise ValueError(
                    f"devices {taken} have a running fleet of this process: shut it down, choose other devices, "
                    "or pass allow_shared=True"
                )
            self._devices -= _claimed  # who came first lets go of them
            _claimed.update(self._devices)

    def release(self) -> None:
        with _claims_lock:
            _claimed.difference_update(self._devices)
