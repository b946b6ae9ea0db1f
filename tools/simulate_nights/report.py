"""All nights as a table for people, and as JSON to keep."""

import json
import shlex
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jobs.in_words import say_duration
from tools.simulate_nights.check import CLAIMS
from tools.simulate_nights.figures import FLEETS, FleetFigures, NightFigures, Spread, sum_up
from tools.simulate_nights.nights import MOST_PODS, NIGHT_S, USD_PER_HOUR
from tools.simulate_nights.rates import Rates
from tools.simulate_nights.timeline import HOUR_S

WIDTH = 110
MOST_VIOLATIONS = 50  # that a report has
Report = dict[str, object]


def is_passed(nights: Sequence[NightFigures]) -> bool:
    return not any(night.violations for night in nights)


def make_report(seed: int, nights: Sequence[NightFigures], took_s: float) -> Report:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
        "seed": seed,
        "nights": len(nights),
        "took_s": round(took_s),
        "night": {"hours": NIGHT_S / HOUR_S, "most_pods": MOST_PODS, "usd_per_hour_of_a_pod": USD_PER_HOUR},
        "jobs": sum(len(next(iter(night.bills.values())).waits_s) for night in nights),
        "passed": is_passed(nights),
        "claims": _describe_claims(nights),
        "violations": _describe_violations(nights),
        "fleets": [_rounded(asdict(sum_up(fleet, nights))) for fleet in FLEETS],
        "reconciler": _describe_behaviour(nights),
        "rates": asdict(Rates()),
    }


def _describe_claims(nights: Sequence[NightFigures]) -> Report:
    broken = Counter(one.claim for night in nights for one in night.violations)
    return {
        claim: {"checked": sum(night.checked[claim] for night in nights), "violations": broken[claim]}
        for claim in CLAIMS
    }


def _describe_violations(nights: Sequence[NightFigures]) -> list[Report]:
    found = [{"night": night.night, **asdict(one)} for night in nights for one in night.violations]
    return found[:MOST_VIOLATIONS]


def _describe_behaviour(nights: Sequence[NightFigures]) -> Report:
    all_of = [night.behaviour for night in nights]
    crashes = sum((Counter(one.crashes) for one in all_of), Counter[str]())
    return _rounded(
        {
            "pods_a_night": statistics.fmean(one.pods for one in all_of),
            "sound_pods_ended_unused_a_night": statistics.fmean(one.unused for one in all_of),
            "idle_usd_a_night": statistics.fmean(one.idle_s for one in all_of) * USD_PER_HOUR / HOUR_S,
            "jobs_wait_and_no_pod_s_a_night": statistics.fmean(one.starved_s for one in all_of),
            "first_job_waits_s": asdict(Spread.of([one.first_wait_s for one in all_of])),
            "nights_in_which_the_money_ran_short": sum(one.money_ran_out for one in all_of),
            "most_over_the_budget_usd": max(one.overrun_usd for one in all_of),
            "billing_step_usd": asdict(Spread.of([one.step_usd for one in all_of])),
            "crashes": dict(sorted(crashes.items())),
        }
    )


def _rounded(figures: Report) -> Report:
    """To what means something."""
    return {name: _round(value) for name, value in figures.items()}


def _round(value: object) -> object:
    if isinstance(value, dict):
        return _rounded(value)
    return round(value, 3 if abs(value) < 10 else 1) if isinstance(value, float) else value


def write_report(path: Path, report: Report) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


# --- for people


def print_report(nights: Sequence[NightFigures]) -> None:
    console = Console()
    console.width = max(WIDTH, console.width)
    console.print(_make_table([sum_up(fleet, nights) for fleet in FLEETS]))
    claims = Table("what must be true", "checked", "broken", title="Claims")
    for claim, told in _describe_claims(nights).items():
        assert isinstance(told, dict)
        claims.add_row(claim, f"{told['checked']:,}", f"{told['violations']:,}")
    console.print(claims)
    for night in nights:
        for one in night.violations:
            console.print(f"night {night.night}, {one.at_s:.0f} s: {one.claim}: {one.what}", markup=False)


def _make_table(fleets: Sequence[FleetFigures]) -> Table:
    columns = ("fleet", "USD", "p95", "wait", "p50", "p95", "finished", "USD/h")
    table = Table(*columns, title="USD of a night, the wait of a job, and USD of a rendered hour")
    for one in fleets:
        table.add_row(
            one.fleet,
            f"{one.usd.mean:.2f}",
            f"{one.usd.p95:.2f}",
            *(say_duration(seconds) for seconds in (one.wait_s.mean, one.wait_s.p50, one.wait_s.p95)),
            f"{one.finished:.1%}",
            f"{one.usd_per_rendered_hour:.2f}",
        )
    return table
