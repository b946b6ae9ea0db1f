"""What one night brings, whoever looks after it: its jobs, its money, and the fate of its n-th pod. All by its seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from tools.simulate_nights.rates import Rates
from tools.simulate_nights.timeline import HOUR_S

NIGHT_S = 10 * HOUR_S  # then the queue is closed, and all pods are to go
REST_S = 3 * HOUR_S  # in which the last of them has to be gone
FAULTS_END_S = NIGHT_S + HOUR_S
MOST_PODS, USD_PER_HOUR, GPUS = 4, 15.12, 8
HOST_GB, CONTAINER_GB, GB_USD_PER_HOUR = 100, 80, 0.10 / 720
DISK_USD_PER_HOUR = (HOST_GB + CONTAINER_GB) * GB_USD_PER_HOUR
STOPPED_USD_PER_HOUR = HOST_GB * 2 * GB_USD_PER_HOUR  # of a pod that is stopped: the container's disk is gone
PLACES = ("US-KS-2", "EU-RO-1", "EU-CZ-1", "US-IL-1")

EVENING_S, BURSTS_PER_HOUR, LATER_BURSTS_PER_HOUR = 4 * HOUR_S, 1.2, 0.25
LARGEST_BURST = 60
NOISE = 0.15  # sigma, of a job within its class
MONEY = (0.7, 5.0)  # of what the work alone would cost
LEAST_USD = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class JobClass:
    """Renders of one size."""

    median_s: float
    weight: float

    @property
    def p75_s(self) -> float:
        return self.median_s * math.exp(0.674 * NOISE)

    @property
    def p99_s(self) -> float:
        return self.median_s * math.exp(2.326 * NOISE)


CLASSES = (JobClass(40, 0.3), JobClass(150, 0.3), JobClass(480, 0.2), JobClass(1200, 0.15), JobClass(2400, 0.05))


@dataclass(eq=False, slots=True)
class Job:
    """One render, and what has become of it. Times are of the night."""

    number: int
    kind: JobClass
    submitted_s: float
    whole_s: float  # on one pod, undisturbed
    kept_s: float = 0.0  # of these, by its last checkpoint
    began_s: float | None = None  # for the first time
    ended_s: list[float] = field(default_factory=list)  # once, if all is well

    @property
    def id(self) -> str:
        return f"job-{self.number}"


class Fault(StrEnum):
    """What is wrong with a pod from its beginning."""

    NONE = "none"
    STUCK = "stuck"
    MUTE = "mute"
    EXITS = "exits"
    UNFIT = "unfit"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Fate:
    """Of one pod, from its creation on."""

    fault: Fault
    boot_s: float
    vanishes_after_s: float
    silent_after_s: float
    silent_for_s: float


@dataclass(frozen=True)
class Night:
    """The same for every fleet that is tried in it."""

    seed: int
    number: int
    rates: Rates = field(default_factory=Rates)

    def random(self, what: str) -> Random:
        """Of its own for each subject, so that one more draw of one changes no other."""
        return Random(f"{self.seed}/{self.number}/{what}")  # noqa: S311 -- it has to come again

    # --- work and money

    def draw_jobs(self) -> list[Job]:
        """New ones at each call, in the order in which they come."""
        random, jobs = self.random("jobs"), list[Job]()
        for at_s in _draw_bursts(random):
            kinds = random.choices(CLASSES, [kind.weight for kind in CLASSES], k=2)
            for _ in range(int(math.exp(random.uniform(0, math.log(LARGEST_BURST + 1))))):
                kind = random.choice(kinds)
                jobs.append(Job(len(jobs), kind, at_s, kind.median_s * random.lognormvariate(0, NOISE)))
        return jobs

    def draw_usd_total(self, jobs: Sequence[Job]) -> float:
        """In some nights too little for all the work."""
        work_usd = sum(job.whole_s for job in jobs) / HOUR_S * USD_PER_HOUR
        return max(LEAST_USD, work_usd * self.random("money").uniform(*MONEY))

    # --- RunPod

    def draw_fate(self, number: int) -> Fate:
        """Of the pod that is the n-th to come."""
        random, rates = self.random(f"pod/{number}"), self.rates
        shares = [rates.stuck, rates.mute, rates.exits, rates.unfit, rates.wrong]
        faults = [Fault.STUCK, Fault.MUTE, Fault.EXITS, Fault.UNFIT, Fault.WRONG, Fault.NONE]
        boot_s = rates.boot_median_s * random.lognormvariate(0, rates.boot_sigma)
        return Fate(
            fault=random.choices(faults, [*shares, 1 - sum(shares)])[0],
            boot_s=min(max(boot_s, rates.boot_bounds_s[0]), rates.boot_bounds_s[1]),
            vanishes_after_s=_draw_wait(random, rates.vanishing_per_hour),
            silent_after_s=_draw_wait(random, rates.silent_per_hour),
            silent_for_s=random.uniform(20, rates.back_within_s) if random.random() < rates.comes_back else math.inf,
        )

    def draw_gaps(self) -> frozenset[tuple[str, int]]:
        """Hours in which a data center has no machine."""
        random = self.random("gaps")
        share = random.uniform(*self.rates.gap)
        hours = range(int((NIGHT_S + REST_S) / HOUR_S) + 1)
        return frozenset((place, hour) for place in PLACES for hour in hours if random.random() < share)


def _draw_bursts(random: Random) -> list[float]:
    """Moments at which jobs come, most in the evening; one at least."""
    evening = _draw_moments(random, 0.0, EVENING_S, BURSTS_PER_HOUR)
    later = _draw_moments(random, EVENING_S, NIGHT_S, LATER_BURSTS_PER_HOUR)
    return [*evening, *later] or [random.uniform(0, EVENING_S)]


def _draw_moments(random: Random, begin_s: float, end_s: float, per_hour: float) -> list[float]:
    moments, at_s = list[float](), begin_s
    while (at_s := at_s + _draw_wait(random, per_hour)) < end_s:
        moments.append(at_s)
    return moments


def _draw_wait(random: Random, per_hour: float) -> float:
    return random.expovariate(per_hour / HOUR_S) if per_hour > 0 else math.inf
