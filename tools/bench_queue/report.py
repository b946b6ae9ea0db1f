"""Verdicts as a table for people, and as JSON to keep."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from h3.machine import describe_machine
from tools.bench_queue.measured import Measured
from tools.bench_queue.rows import Row, Verdict
from tools.figures import show_figures, summarize

PLAIN_WIDTH = 160  # where there is no terminal to ask


def print_table(verdicts: Sequence[Verdict]) -> None:
    table = Table("row", "store", "goal", "measured", "met", show_lines=True)
    for verdict in verdicts:
        row = verdict.row
        table.add_row(
            row.title, verdict.store, row.show_goal(), show_measured(row, verdict.measured), show_met(verdict)
        )
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


def show_met(verdict: Verdict) -> str:
    if not verdict.met:
        return "[bold red]NO[/]"
    return "yes" if verdict.row.goal else ""


def show_measured(row: Row, measured: Measured) -> str:
    broken = [f"NOT: {claim}" for claim, holds in measured.claims.items() if not holds]
    figures = [show_figures(measured.figures, row.show)] if measured.figures else []
    return "\n".join([*figures, *broken, *([measured.error] if measured.error else [])])


def write_report(path: Path, verdicts: Sequence[Verdict], server: str, ranks: int) -> None:
    report = {
        **describe_machine(on_gpus=False),
        "redis": server,
        "ranks": ranks,
        "rows": {verdict.name: row_report(verdict) for verdict in verdicts},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def row_report(verdict: Verdict) -> dict[str, object]:
    row, measured = verdict.row, verdict.measured
    return {
        "row": row.title,
        "goal": row.show_goal(),
        "met": verdict.met,
        "measured": summarize(measured.figures, row.unit),
        "claims": dict(measured.claims),
        **({"details": dict(measured.details)} if measured.details else {}),
        **({"error": measured.error} if measured.error else {}),
    }
