"""What must be true of every night with the reconciler: by the truth, whatever the reconciler believed."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tools.simulate_nights.facts import Facts
from tools.simulate_nights.nights import NIGHT_S, USD_PER_HOUR

CENT, LOOK_S = 0.01, 15.0


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be."""

    claim: str
    at_s: float
    what: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one night."""

    checked: dict[str, int]  # by claim: how often it was put to the test
    violations: Sequence[Violation]


Found = Iterator[tuple[float, str]]  # when, and what


def judge(facts: Facts) -> Verdict:
    checked = {claim: count(facts) for claim, (count, _) in CLAIMS.items()}
    found = [Violation(claim, at_s, what) for claim, (_, find) in CLAIMS.items() for at_s, what in find(facts)]
    return Verdict(checked, found)


def _find_living(facts: Facts) -> Found:
    for pod in facts.pods:
        if pod.gone_s is None:
            yield facts.end_s, f"{pod.id} ({pod.name}) still runs, {facts.end_s - pod.created_s:.0f} s old"


def find_step(facts: Facts) -> float:
    """What all pods cost from one look to the next, at most: crashes and lists that failed lie between them."""
    costs = [0.0, *(look.usd for look in facts.looks), facts.usd]
    return max(after - before for before, after in pairwise(costs))


def find_overrun(facts: Facts) -> float:
    """USD over the budget; what a pod costs after its end was asked for is RunPod's doing."""
    late = sum(
        pod.find_usd(facts.end_s) - pod.find_usd(pod.end_asked_s) for pod in facts.pods if pod.end_asked_s is not None
    )
    return facts.usd - late - facts.usd_total


def _find_overspending(facts: Facts) -> Found:
    overrun, step = find_overrun(facts), find_step(facts)
    if overrun > step + CENT:
        yield facts.end_s, f"{overrun:.2f} USD over {facts.usd_total:.2f}, a step of that night is {step:.2f}"


def _find_overload(facts: Facts) -> Found:
    """Too much in an hour, at a moment at which a pod came."""
    for pod in facts.pods:
        at_s = pod.created_s
        running = sum(one.runs_at(at_s) for one in facts.pods)
        if running * USD_PER_HOUR > facts.usd_per_hour + CENT:
            yield at_s, f"{running} pods at {USD_PER_HOUR:.2f} USD per hour, {facts.usd_per_hour:.2f} are allowed"


def _find_wrong_ends(facts: Facts) -> Found:
    for end in facts.ends:
        if end.was_busy and end.idle and not end.is_lease_over and not end.is_budget_spent:
            yield end.at_s, f"{end.pod.id} was busy when it was ended, {', '.join(end.idle)} idle"


def _find_lost_jobs(facts: Facts) -> Found:
    for job in facts.jobs:
        if len(job.ended_s) > 1:
            yield job.ended_s[1], f"{job.id} was rendered {len(job.ended_s)} times"
    for look in facts.looks:
        if look.jobs_told != look.jobs_left:
            yield look.at_s, f"{look.jobs_left} jobs are left, told are {look.jobs_told}"


def _find_unexplained(facts: Facts) -> Found:
    """Until all pods are told to go."""
    for look in facts.looks:
        if look.at_s < NIGHT_S - LOOK_S and look.jobs_left and not (look.is_served or look.reason):
            yield look.at_s, f"{look.jobs_left} jobs are left, and nothing is said or done about it"


def _find_doubles(facts: Facts) -> Found:
    for token, count in Counter(pod.token for pod in facts.pods).items():
        if count > 1:
            yield facts.end_s, f"{count} pods have the token {token}"


def _find_miscounts(facts: Facts) -> Found:
    step = find_step(facts)
    for look in facts.looks:
        if look.counted_usd + step + CENT < look.usd:
            yield look.at_s, f"counted are {look.counted_usd:.2f} USD of {look.usd:.2f}, a step is {step:.2f}"


CLAIMS: dict[str, tuple[Callable[[Facts], int], Callable[[Facts], Found]]] = {
    "no pod is left running after the night": (lambda facts: len(facts.pods), _find_living),
    "a campaign costs at most its budget and one billing step": (lambda _: 1, _find_overspending),
    "pods together never cost more in an hour than allowed": (lambda facts: len(facts.pods), _find_overload),
    "no busy pod is ended while an idle one exists": (lambda facts: len(facts.ends), _find_wrong_ends),
    "no job is lost, or rendered twice": (lambda facts: len(facts.jobs), _find_lost_jobs),
    "what keeps jobs waiting is told": (lambda facts: len(facts.looks), _find_unexplained),
    "no two pods have one token": (lambda facts: len(facts.pods), _find_doubles),
    "what is counted is not less than the cost by more than one billing step": (
        lambda facts: len(facts.looks),
        _find_miscounts,
    ),
}
