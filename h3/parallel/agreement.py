"""What every rank must have in common before they compute together: told by each, compared by all, at start.

Ranks that differ in any of it would exchange parts that do not belong together: noise at best, a hang at worst.
"""

from dataclasses import dataclass, fields

import torch
import torch.distributed as dist

from h3.collectives import share_all
from h3.errors import RanksDisagree


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank's side."""

    config: str  # sizes of the model
    checkpoint: str  # digest
    mode: str
    precision: str
    attention: str  # that is asked for
    torch: str
    nccl: str

    @classmethod
    def tell(cls, *, config: str, checkpoint: str, mode: str, precision: str, attention: str) -> "RankFacts":
        """With what this process runs on."""
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"
        return cls(config, checkpoint, mode, precision, attention, torch.__version__, nccl)


def confirm_agreement(facts: RankFacts, group: dist.ProcessGroup) -> None:
    """Collective; the same outcome on every rank. Raises RanksDisagree naming what, and what each rank says."""
    everyone = share_all(facts, group)
    for field in fields(RankFacts):
        told = [getattr(each, field.name) for each in everyone]
        if len(set(told)) > 1:
            each = "; ".join(f"rank {rank}: {said}" for rank, said in enumerate(told))
            raise RanksDisagree(
                f"the ranks disagree on {field.name} ({each}): start all of them from one installation, on the same "
                "files, with the same settings"
            )
