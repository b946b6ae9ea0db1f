"""CUDA memory between processes: whether this one can share its own, and what a killed one leaves behind."""

import contextlib
import functools
import os
from pathlib import Path

import torch


@functools.cache
def can_share(device: torch.device) -> bool:
    """False with the allocator's expandable segments: their handles need permissions that containers withhold.

    Looks at what the allocator has made, so it sees the environment's setting and a later call's alike.
    Source: pytorch/pytorch#165685, #179220, #186213.
    """
    probe = torch.empty(1, device=device)
    is_expandable = any(segment.get("is_expandable") for segment in torch.cuda.memory_snapshot())
    del probe
    return not is_expandable


def remove_leftovers(pid: int, *, spawned_at: float) -> None:
    """After a rank's death: CUDA and torch unlink their files in /dev/shm only when a process winds up in order.

    spawned_at  a time.time(). Where containers share /dev/shm, a process of another one may have the same number
    """
    for pattern in (f"cuda.shm.*.{pid:x}.*", f"torch_{pid}_*"):
        for path in Path("/dev/shm").glob(pattern):  # noqa: S108  # they chose the place
            with contextlib.suppress(OSError):  # somebody else was faster, or it is somebody else's
                found = path.stat()
                if found.st_uid == os.getuid() and found.st_mtime >= spawned_at:
                    path.unlink()
