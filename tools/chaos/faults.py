"""Which faults a run has, and when: drawn from its seed. Knows no processes."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

LONGEST_OUTAGE_S = 3.0  # of Redis or of the store
LONGEST_GAP = 4.0  # times the mean
STOPPED_LEASES = (1.3, 2.0)  # for so many a stopped worker stands still


class Kind(StrEnum):
    """What happens. Each is as frequent as the others."""

    KILL_WORKER = "kill-worker"  # SIGKILL; its ranks die with it
    KILL_RANK = "kill-rank"  # SIGKILL
    KILL_REDIS = "kill-redis"  # SIGKILL, started again on its data
    KILL_STORE = "kill-store"  # likewise
    STOP_WORKER = "stop-worker"  # SIGSTOP for longer than a lease, then SIGCONT
    END_WORKER = "end-worker"  # SIGTERM


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    gap_s: float  # since the one before
    lasts_s: float  # until the server is started again, or the worker goes on
    victim: float  # of those there are, from 0 to 1


def draw_faults(seed: int, *, mean_gap_s: float, lease_s: float) -> Iterator[Fault]:
    """Faults without end; the same for the same arguments."""
    dice = random.Random(seed)  # noqa: S311  no secret
    while True:
        for kind in dice.sample(list(Kind), len(Kind)):
            gap_s = min(dice.expovariate(1 / mean_gap_s), LONGEST_GAP * mean_gap_s)
            yield Fault(kind, gap_s, _draw_duration(kind, dice, lease_s), dice.random())


def _draw_duration(kind: Kind, dice: random.Random, lease_s: float) -> float:
    match kind:
        case Kind.KILL_REDIS | Kind.KILL_STORE:
            return dice.uniform(0, LONGEST_OUTAGE_S)
        case Kind.STOP_WORKER:
            return lease_s * dice.uniform(*STOPPED_LEASES)
    return 0.0
