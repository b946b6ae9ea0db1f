"""A run as a page for people, and as JSON to keep."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from h3.machine import describe_machine
from tools.chaos.history import describe_attempts, describe_faults
from tools.chaos.run import Plan, Run
from tools.chaos.storm import Happened


def is_passed(plan: Plan, run: Run) -> bool:
    """Whether nothing is wrong with any job, none was left out, and no worker has given up."""
    return run.verdict.is_clean and run.verdict.told["counts"]["jobs"] == plan.jobs and not run.given_up


def make_report(plan: Plan, run: Run) -> dict[str, object]:
    told = run.verdict.told
    return {
        **describe_machine(on_gpus=False),
        "plan": asdict(plan),
        "passed": is_passed(plan, run),
        "results": {**told["counts"], **{kind: len(told[kind]) for kind in ("lost", "double", "wrong")}},
        "findings": {kind: told[kind] for kind in ("lost", "double", "wrong")},
        "dead_letters": told["dead_letters"],
        "storm_s": round(run.storm_s, 1),
        "rest_s": round(run.rest_s, 1),
        "faults": describe_faults(run.happened, run.stories),
        "attempts": describe_attempts(run.stories),
        "exit_codes": dict(Counter(str(code) for codes in run.exit_codes for code in codes[:-1])),
        "exit_codes_at_the_end": [codes[-1] for codes in run.exit_codes],
        "given_up": run.given_up,
        "spool_folders_left": run.spool_left,
        "storm": [describe_fault(fault, run.began_at) for fault in run.happened],
    }


def describe_fault(fault: Happened, began_at: float) -> str:
    """One line: a storm is long."""
    lasts = f" for {fault.lasts_s:.1f} s" if fault.lasts_s else ""
    return f"{fault.at - began_at:6.1f} s  {fault.kind}  {fault.victim or 'nobody there'}{lasts}"


def write_report(path: Path, report: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def print_report(report: dict[str, object]) -> None:
    """All but the storm."""
    Console().print_json(json.dumps({name: value for name, value in report.items() if name != "storm"}))
