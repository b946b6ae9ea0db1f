"""What nights cost, and how long jobs waited: of one night, and of all."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tools.simulate_nights.check import Violation, find_overrun, find_step, judge
from tools.simulate_nights.facts import Facts
from tools.simulate_nights.fixed import FixedFleet
from tools.simulate_nights.nights import MOST_PODS, NIGHT_S, USD_PER_HOUR, Fault, Job, Night
from tools.simulate_nights.reconciled import run_reconciled
from tools.simulate_nights.timeline import HOUR_S

RECONCILER, SAME_MONEY = "reconciler", "fixed, same money"
FLEETS = (RECONCILER, *(f"fixed, {count}" for count in range(1, MOST_PODS + 1)), SAME_MONEY)


@dataclass(frozen=True, slots=True)
class Bill:
    """Of one fleet in one night."""

    usd: float
    waits_s: Sequence[float]  # of each job, from its submission to its first second of rendering, or to the night's end
    finished: int
    rendered_s: float  # that finished jobs took


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Of the reconciler in one night."""

    pods: int
    unused: int  # sound pods that were ended before they rendered anything
    idle_s: float
    starved_s: float
    first_wait_s: float  # of the night's first job: there is no pod before it
    money_ran_out: bool
    overrun_usd: float  # below 0: so much of the budget is left
    step_usd: float
    crashes: dict[str, int]


@dataclass(frozen=True, slots=True)
class NightFigures:
    """All that is kept of one night."""

    night: int
    checked: dict[str, int]
    violations: Sequence[Violation]
    bills: dict[str, Bill]  # by fleet
    behaviour: Behaviour


def measure_night(night: Night) -> NightFigures:
    """With the reconciler, and with every fixed fleet."""
    facts = run_reconciled(night)
    verdict = judge(facts)
    bills = {RECONCILER: _bill(facts.jobs, facts.usd)}
    for count in range(1, MOST_PODS + 1):
        bills[f"fixed, {count}"] = _bill_fixed(night, count, facts.usd_total)
    same = max(1, min(MOST_PODS, round(facts.usd / (USD_PER_HOUR * NIGHT_S / HOUR_S))))
    bills[SAME_MONEY] = _bill_fixed(night, same, facts.usd)
    return NightFigures(night.number, verdict.checked, verdict.violations, bills, _describe(facts))


def _bill_fixed(night: Night, count: int, usd: float) -> Bill:
    fleet = FixedFleet.of(night, count, usd)
    fleet.run()
    return _bill(fleet.jobs, fleet.cloud.usd)


def _bill(jobs: Sequence[Job], usd: float) -> Bill:
    finished = [job for job in jobs if job.ended_s]
    waits_s = [(NIGHT_S if job.began_s is None else job.began_s) - job.submitted_s for job in jobs]
    return Bill(usd, waits_s, len(finished), sum(job.whole_s for job in finished))


def _describe(facts: Facts) -> Behaviour:
    ended = [pod for pod in facts.pods if pod.fate.fault is Fault.NONE and pod.end_asked_s is not None]
    first = min(facts.jobs, key=lambda job: job.submitted_s)
    return Behaviour(
        pods=len(facts.pods),
        unused=sum(pod.name not in facts.used for pod in ended),
        idle_s=facts.idle_s,
        starved_s=facts.starved_s,
        first_wait_s=(NIGHT_S if first.began_s is None else first.began_s) - first.submitted_s,
        money_ran_out=any(look.is_spent or "USD are spent" in look.reason for look in facts.looks),
        overrun_usd=find_overrun(facts),
        step_usd=find_step(facts),
        crashes=facts.crashes,
    )


# --- of all nights


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over nights or jobs."""

    mean: float
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        ordered = sorted(values)
        shares = (0.05, 0.25, 0.5, 0.75, 0.95)
        return cls(statistics.fmean(ordered), *(ordered[min(len(ordered) - 1, int(s * len(ordered)))] for s in shares))


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Of one fleet in all nights."""

    fleet: str
    usd: Spread  # of a night
    wait_s: Spread  # of a job
    night_wait_s: Spread  # the p95 of each night's jobs, over nights
    finished: float  # share of jobs
    usd_per_rendered_hour: float


def sum_up(fleet: str, nights: Sequence[NightFigures]) -> FleetFigures:
    bills = [night.bills[fleet] for night in nights]
    waits_s = [wait_s for bill in bills for wait_s in bill.waits_s]
    usd, rendered_s = sum(bill.usd for bill in bills), sum(bill.rendered_s for bill in bills)
    return FleetFigures(
        fleet=fleet,
        usd=Spread.of([bill.usd for bill in bills]),
        wait_s=Spread.of(waits_s),
        night_wait_s=Spread.of([Spread.of(bill.waits_s).p95 for bill in bills]),
        finished=sum(bill.finished for bill in bills) / len(waits_s),
        usd_per_rendered_hour=usd / max(rendered_s, 1.0) * HOUR_S,
    )
