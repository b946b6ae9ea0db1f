"""A night as a page for people, and as JSON to keep; and what must be true of every one."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from h3.machine import describe_machine
from tools.overnight.desk import SHOTS
from tools.overnight.night import Evening, Night, Plan

MOST_FINDINGS = 100


def claims(night: Night) -> dict[str, bool]:
    """Besides that the report is right: that the night went as it was meant to."""
    numbers, counts = night.verdict.numbers, night.verdict.numbers["counts"]
    lost = numbers["attempts"] - counts["finished"] - counts["failed"]
    return {
        **_evening_claims(night.evening, night.shots),
        "the watch ended by itself, and said that not all was finished": night.watch_code == 1,
        "one row's job died, after three attempts": counts["dead"] == 1 and numbers["dead_attempts"] == [3],
        "one row's job was refused by its runner": counts["failed"] == 1,
        "all others are finished": counts["finished"] == night.shots - 2,
        "each kill cost one attempt, and nothing else did": lost == 3 + len(night.killed),
        "the report was written": night.told.code == 0,
        "every number of the report is right": not night.verdict.findings,
    }


def _evening_claims(evening: Evening, shots: int) -> dict[str, bool]:
    place = f"{SHOTS}:{evening.wrong_line}, column width: "
    return {
        "a file with a wrong row is refused, with the line": evening.refused.code == 2
        and place in evening.refused.errors,
        "nothing of it is queued": evening.left_by_refused == 0,
        "put right, it is queued whole": evening.submitted.code == 0 and evening.jobs == shots,
        "submitted again, nothing is new": evening.again.code == 0
        and evening.jobs_after_again == shots
        and f"0 queued, {shots:,} known" in evening.again.text,
    }


def is_passed(night: Night, plan: Plan) -> bool:
    return all(claims(night).values()) and len(night.killed) == plan.kills


def make_report(plan: Plan, night: Night) -> dict[str, object]:
    return {
        **describe_machine(on_gpus=False),
        "plan": asdict(plan),
        "passed": is_passed(night, plan),
        "claims": claims(night),
        "refusal": night.evening.refused.errors.strip(),
        "submitted": night.evening.submitted.text.strip(),
        "submitted_again": night.evening.again.text.strip(),
        "kills": [asdict(killed) for killed in night.killed],
        "night_s": round(night.took_s, 1),
        "numbers": {name: rounded(value) for name, value in night.verdict.numbers.items()},
        "findings": list(night.verdict.findings)[:MOST_FINDINGS],
    }


def rounded(value: object) -> object:
    """To what was measured."""
    return round(value, 3) if isinstance(value, float) else value


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def print_report(report: Mapping[str, Any]) -> None:
    Console().print_json(json.dumps(report))
