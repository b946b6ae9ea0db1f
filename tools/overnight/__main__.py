"""Rehearses a night: a batch on workers of which one is killed; then checks every number of the report.

python tools/overnight benchmarks/reports/overnight-2cores.json --rows 300
"""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[2]))  # a folder that is run sees only its inside

from tools.overnight.farm import StoreKind
from tools.overnight.night import Plan, run
from tools.overnight.report import is_passed, make_report, print_report, write_report
from tools.overnight.shots import FEWEST_ROWS


def main(
    report: Annotated[Path | None, typer.Argument(help="Where to write a JSON report.")] = None,
    rows: Annotated[int, typer.Option(min=FEWEST_ROWS, help="Of the file; one is a sweep of several shots.")] = 300,
    seed: Annotated[int, typer.Option(help="The same seed makes the same file.")] = 1,
    kills: Annotated[int, typer.Option(min=0, help="Of one worker, each in the middle of a job.")] = 2,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    store: Annotated[StoreKind, typer.Option(help="Where results go.")] = StoreKind.FILE,
    lease_s: Annotated[float, typer.Option(min=1.0)] = 2.0,
    price: Annotated[float, typer.Option(min=0, help="Of a worker machine, an hour.")] = 2.5,
    longest_s: Annotated[float, typer.Option(min=1.0, help="After which the night counts as lost.")] = 1800.0,
    folder: Annotated[Path, typer.Option(help="For all that the night leaves.")] = Path("build/overnight"),
) -> None:
    """Rehearse a night and check its report. Exit code 1 if anything went otherwise than it should."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # so that everything is tidied up
    plan = Plan(rows, seed, kills, workers, store, lease_s, price, longest_s)
    done = run(plan, folder.resolve())
    made = make_report(plan, done)
    print_report(made)
    if report is not None:
        write_report(report, made)
    raise typer.Exit(0 if is_passed(done, plan) else 1)


if __name__ == "__main__":
    typer.run(main)
