"""Pods of ours that no order tells of: which of them may be ended. Only what is proven to be unwanted is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from infra.answers import Pod
from infra.ledger import Row
from infra.reconciler.machine import find_oldest
from infra.reconciler.situation import Situation

YOUNG_S = 600.0  # an order may be on its way into the ledger
LARGEST_SHARE = 0.5  # of all our pods that may go for this reason at a time, but for a single one


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is done about them."""

    ends: tuple[Pod, ...] = ()
    alerts: tuple[str, ...] = ()


def find_strays(pods: Sequence[Pod], rows: Iterable[Row]) -> tuple[Pod, ...]:
    """By their names. Of two with a name, the newer one has no order.

    pods  the fleet's, by a complete list
    rows  all of them, closed ones too
    """
    names, oldest = {row.name for row in rows}, find_oldest(pods)
    alive = [pod for pod in pods if not pod.is_gone]
    return tuple(pod for pod in alive if pod.name not in names or pod is not oldest[pod.name])


def judge_strays(situation: Situation) -> Sweep:
    """Those that are old enough to have a row, if the ledger is old enough to have had it."""
    ripe = [pod for pod in situation.strays if pod.age_s(situation.now) >= YOUNG_S]
    unproven = [pod for pod in ripe if not _is_proven(pod, situation.born_at)]
    proven = [pod for pod in ripe if _is_proven(pod, situation.born_at)]
    alerts = [
        f"pod {pod.id} ({pod.name}, {pod.cost:.2f} USD per hour) is older than the ledger, so what it is for is not "
        "known: end it with `h3render pods terminate` if nobody needs it"
        for pod in unproven
    ]
    if _are_too_many(proven, situation):
        alerts.append(
            f"{len(proven)} pods of ours are in no order, more than half of all: none is ended. Is this the right "
            "Redis? `h3render pods list` shows them"
        )
        return Sweep(alerts=tuple(alerts))
    return Sweep(tuple(proven), tuple(alerts))


def count_ending(situation: Situation) -> int:
    """Strays that will end: the others stay, whoever goes down."""
    return sum(_is_proven(pod, situation.born_at) for pod in situation.strays)


def _is_proven(pod: Pod, born_at: datetime | None) -> bool:
    return born_at is not None and pod.created_at >= born_at


def _are_too_many(strays: Sequence[Pod], situation: Situation) -> bool:
    listed = sum(machine.pod is not None for machine in situation.machines) + len(situation.strays)
    return len(strays) > max(1.0, LARGEST_SHARE * listed)
