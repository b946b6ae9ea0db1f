"""How many pods there are to be: arithmetic on one situation. Numbers and reasons are in the order of the rules."""

import math
from dataclasses import dataclass

from infra.reconciler.machine import Stage
from infra.reconciler.situation import Situation
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
    """More than there are: as many as may be ordered now."""
    limits, count, why = situation.limits, wanted.count, wanted.why
    if situation.usd_per_hour <= 0:
        return Wanted(have, f"{why}; the catalog has no price, so none is ordered")
    if count > have + limits.step_up:
        count, why = have + limits.step_up, f"{why}, {limits.step_up} at a time"
    free = limits.usd_per_hour - situation.committed_usd_per_hour
    if count > have + (affordable := max(0, math.floor(free / situation.usd_per_hour + 1e-9))):
        count = have + affordable
        why = f"{why}; {situation.committed_usd_per_hour:.2f} of {limits.usd_per_hour:.2f} USD per hour are taken"
    if count > have + (payable := _count_payable(situation)):
        count, why = have + payable, f"{why}; {say_budget(situation)}"
    return Wanted(count, why)


def _count_payable(situation: Situation) -> int:
    """Pods more that the campaign's budget lets start and render a job each, beside what there is already."""
    if situation.spent_usd >= NO_MORE_AT * situation.limits.usd_total:
        return 0
    each = situation.usd_per_hour * _first_job_s(situation) / 3600
    return max(0, math.floor((situation.left_usd - _promised_usd(situation)) / each))


def _first_job_s(situation: Situation) -> float:
    return situation.boot_s + situation.work.p75_s


def _promised_usd(situation: Situation) -> float:
    """What the pods that there are may take before they have done anything more."""
    starting = situation.in_stage(Stage.ORDERED, Stage.STARTING)
    return situation.reserve_usd + sum(one.usd_per_hour for one in starting) * _first_job_s(situation) / 3600


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
