"""Whether this process can hand its CUDA memory to another one."""

import functools

import torch


@functools.cache
def can_share() -> bool:
    """False with the allocator's expandable segments: their handles need permissions that containers withhold.

    Looks at what the allocator has made, so it sees the environment's setting and a later call's alike. Ask when
    CUDA is in use. Source: pytorch/pytorch#165685, #179220, #186213.
    """
    probe = torch.empty(1, device="cuda")
    is_expandable = any(segment.get("is_expandable") for segment in torch.cuda.memory_snapshot())
    del probe
    return not is_expandable
