"""Verdicts as a table for people, and as JSON to keep."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from h3.machine import describe_machine
from tools.bench_controller.fleets import Setting
from tools.bench_controller.rows import Verdict
from tools.figures import show_figures, summarize

PLAIN_WIDTH = 160  # where there is no terminal to ask


def print_table(verdicts: Sequence[Verdict], setting: Setting) -> None:
    title = f"ranks: {setting.ranks}, backend: {setting.backend}"
    table = Table("row", "reference, 2xH200", "goal", "measured", "met", title=title, show_lines=True)
    for verdict in verdicts:
        met = "yes" if verdict.met else "[bold red]NO[/]"
        table.add_row(verdict.row.title, verdict.row.reference, verdict.goal, show_measured(verdict), met)
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


def show_measured(verdict: Verdict) -> str:
    measured = verdict.measured
    broken = [f"NOT: {claim}" for claim, holds in measured.claims.items() if not holds]
    figures = [show_figures(measured.figures, verdict.row.unit.show)] if measured.figures else []
    return "\n".join([*figures, *broken, *([measured.error] if measured.error else [])]) or "as it should be"


def write_report(path: Path, verdicts: Sequence[Verdict], setting: Setting) -> None:
    report = {
        **describe_machine(on_gpus=setting.on_gpus),
        "ranks": setting.ranks,
        "backend": setting.backend,
        "rows": {verdict.row.slug: row_report(verdict) for verdict in verdicts},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def row_report(verdict: Verdict) -> dict[str, object]:
    row, measured = verdict.row, verdict.measured
    return {
        "row": row.title,
        "reference": row.reference,
        "goal": verdict.goal,
        "met": verdict.met,
        "measured": summarize([figure * row.unit.per_base for figure in measured.figures], row.unit.name),
        "claims": dict(measured.claims),
        **({"details": dict(measured.details)} if measured.details else {}),
        **({"error": measured.error} if measured.error else {}),
    }
