"""How many pods there are to be: arithmetic on one situation. Numbers and reasons are in the order of the rules."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat

from infra.ledger import RowState
from infra.reconciler.health import nears_its_end
from infra.reconciler.machine import Machine, Stage
from infra.reconciler.situation import END_S, Situation
from jobs.in_words import say_count, say_duration

NO_MORE_AT = 0.9  # of the campaign's budget
WARN_AT = 0.75
LOOK_S = 30.0  # at most, from one look to what the next one does


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many, and why."""

    count: int
    why: str


def count_wanted(situation: Situation) -> Wanted:
    """By what waits and runs, within all limits."""
    if situation.is_going_down:
        return Wanted(0, "none, by a person's word")
    if is_spent(situation):
        return Wanted(0, f"none: {say_budget(situation)}, and what runs needs {situation.reserve_usd:.2f} to finish")
    if situation.is_done:
        return Wanted(0, "none: no job is left")
    wanted = _by_work(situation)
    have = len(situation.counted)
    return wanted if wanted.count <= have else _within_limits(situation, wanted, have)


def _by_work(situation: Situation) -> Wanted:
    work, limits, have = situation.work, situation.limits, len(situation.counted)
    count = min(math.ceil(work.seconds / limits.horizon_s), work.jobs)
    why = f"{say_duration(work.seconds)} of work in {say_count(work.jobs, 'job')}"
    if count > have and situation.serving and work.seconds / len(situation.serving) < situation.boot_s / 2:
        count, why = have, f"{why}, done before one more pod would have started"
    if count < (least := max(limits.least, 1 if work.waiting else 0)):
        count, why = least, f"{why}, at least {least}"
    if count > limits.most:
        count, why = limits.most, f"{why}, at most {limits.most}"
    return Wanted(count, why)


def _within_limits(situation: Situation, wanted: Wanted, have: int) -> Wanted:
    """More than there are: as many as may come back, or be ordered, now."""
    limits, count, why = situation.limits, wanted.count, wanted.why
    returning = len(find_returning(situation))  # they are paid for by the hour already
    if situation.usd_per_hour <= 0 and count > have + returning:
        count, why = have + returning, f"{why}; the catalog has no price, so none is ordered"
    if count > have + (step := max(limits.step_up, returning)):
        count, why = have + step, f"{why}, {step} at a time"
    if count > have + returning + (affordable := _count_affordable(situation)):
        count = have + returning + affordable
        why = f"{why}; {situation.committed_usd_per_hour:.2f} of {limits.usd_per_hour:.2f} USD per hour are taken"
    if count > have + (payable := _count_payable(situation)):
        count, why = have + payable, f"{why}; {say_budget(situation)}"
    return Wanted(count, why)


def _count_affordable(situation: Situation) -> int:
    """New pods that fit into an hour."""
    free = situation.limits.usd_per_hour - situation.committed_usd_per_hour
    return max(0, math.floor(free / situation.usd_per_hour + 1e-9)) if situation.usd_per_hour > 0 else 0


def _count_payable(situation: Situation) -> int:
    """Pods more that the campaign's budget lets render a job each, beside what there is already."""
    free_usd, count = situation.left_usd - _promised_usd(situation), 0
    for usd in islice(_list_costs(situation), situation.limits.most):
        free_usd -= usd
        if free_usd < 0:
            break
        count += 1
    return count


def _list_costs(situation: Situation) -> Iterator[float]:
    """Of the next pod, and so on: first those that drain, which need not start."""
    for machine in find_returning(situation):
        # The reserve has the job of one that renders.
        yield 0.0 if machine.job is not None else machine.usd_per_hour * situation.work.p99_s / 3600
    if situation.spent_usd < NO_MORE_AT * situation.limits.usd_total:
        yield from repeat(situation.usd_per_hour * (situation.boot_s + situation.work.p99_s + END_S) / 3600)


def find_returning(situation: Situation) -> list[Machine]:
    """Those that drain, and need not while there is a budget; first those whose jobs it pays for anyway."""
    draining = [one for one in situation.in_stage(Stage.DRAINING) if one.row.state is RowState.DRAINING]
    returning = [one for one in draining if one.is_heard and not nears_its_end(one, situation)]
    return sorted(returning, key=lambda one: one.job is None)


def _promised_usd(situation: Situation) -> float:
    """What it takes once every pod that there is renders: with less left, all would be drained as soon as they do."""
    starting = sum(one.usd_per_hour for one in situation.in_stage(Stage.ORDERED, Stage.STARTING))
    idle = sum(one.usd_per_hour for one in situation.counted if one.job is None)
    return situation.reserve_usd + (starting * situation.boot_s + idle * situation.work.p99_s) / 3600


# --- the campaign's budget


def is_spent(situation: Situation) -> bool:
    """Only what runs can still be paid."""
    return situation.left_usd <= situation.reserve_usd


def is_overspent(situation: Situation) -> bool:
    """Not even that: the next look would come too late."""
    return situation.left_usd <= situation.committed_usd_per_hour * LOOK_S / 3600


def needs_warning(situation: Situation) -> bool:
    return situation.spent_usd >= WARN_AT * situation.limits.usd_total


def say_budget(situation: Situation) -> str:
    return f"{situation.spent_usd:.2f} of {situation.limits.usd_total:.2f} USD are spent"
