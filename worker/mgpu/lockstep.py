"""Ranks compare notes, and the one out of step is named: at each yield with `check_lockstep=True`, or when told to."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from worker.mgpu.peers import Peers

_STEP = struct.Struct("<QQ?")


class Step(NamedTuple):
    job_id: int
    yields: int  # before this moment
    has_ended: bool


class LockstepError(Exception):
    """A rank yielded where others ended, or the other way round."""


def require_same_step(peers: Peers, job_id: int, yields: int, *, has_ended: bool) -> None:
    """Collective. `yields`: how many elements this rank has yielded before this moment.

    Raises LockstepError, on every rank alike. A rank that never gets here keeps its peers waiting: then the job's
    time-out tells, with stacks.
    """
    steps = [Step(*_STEP.unpack(word)) for word in peers.gather(_STEP.pack(job_id, yields, has_ended))]
    if len(set(steps)) > 1:
        raise LockstepError(describe_divergence(steps))


def require_alike(peers: Peers, word: bytes) -> None:
    """Collective. Raises LockstepError, on every rank alike, unless all say the same. Words of one length."""
    words = peers.gather(word)
    if len(set(words)) > 1:
        usual, _ = Counter(words).most_common(1)[0]
        rank = next(rank for rank, said in enumerate(words) if said != usual)
        raise LockstepError(
            f"rank {rank} is the first to have diverged: it has {words[rank]!r}, rank {words.index(usual)} {usual!r}"
        )


def describe_divergence(steps: Sequence[Step]) -> str:
    usual, _ = Counter(steps).most_common(1)[0]  # of equals the first, which is rank 0's
    rank = next(rank for rank, step in enumerate(steps) if step != usual)
    return (
        f"rank {rank} is the first out of step: it {_tell(steps[rank])}, while rank {steps.index(usual)} {_tell(usual)}"
    )


def _tell(step: Step) -> str:
    return f"{'ended' if step.has_ended else 'yielded again'} after {step.yields} yields in job {step.job_id}"
