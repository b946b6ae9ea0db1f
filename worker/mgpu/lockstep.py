"""The debug mode `check_lockstep=True`: at each yield all ranks compare notes, and the one out of step is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist


class LockstepError(Exception):
    """A rank yielded where others ended, or the other way round."""


def require_same_step(group: dist.ProcessGroup, job_id: int, yields: int, *, has_ended: bool) -> None:
    """Collective over `group` (Gloo). `yields`: how many elements this rank has yielded before this moment.

    Raises LockstepError, on every rank alike. A rank that never gets here keeps its peers waiting: then the job's
    time-out tells, with stacks.
    """
    mine = torch.tensor([job_id, yields, has_ended])
    everyone = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(everyone, mine, group=group)
    steps = [tuple(step.tolist()) for step in everyone]
    if len(set(steps)) > 1:
        raise LockstepError(describe_divergence(steps))


def describe_divergence(steps: Sequence[tuple[int, int, int]]) -> str:
    """`steps`: of each rank its job, how many elements it had yielded, and whether it ended there."""
    usual, _ = Counter(steps).most_common(1)[0]  # of equals the first, which is rank 0's
    rank = next(rank for rank, step in enumerate(steps) if step != usual)
    return (
        f"rank {rank} is the first out of step: it {_tell(steps[rank])}, while rank {steps.index(usual)} {_tell(usual)}"
    )


def _tell(step: tuple[int, int, int]) -> str:
    job_id, yields, has_ended = step
    return f"{'ended' if has_ended else 'yielded again'} after {yields} yields in job {job_id}"
