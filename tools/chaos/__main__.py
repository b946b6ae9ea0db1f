"""Renders short jobs on a farm whose parts are killed, stopped and ended at random moments, and checks the outcome.

python tools/chaos benchmarks/reports/chaos-seed-1.json --seed 1
"""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[2]))  # a folder that is run sees only its inside

from tools.chaos.report import is_passed, make_report, print_report, write_report
from tools.chaos.run import Plan, run


def main(
    report: Annotated[Path | None, typer.Argument(help="Where to write a JSON report.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same faults.")] = 1,
    jobs: Annotated[int, typer.Option(min=1)] = 200,
    workers: Annotated[int, typer.Option(min=1)] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Of a job.")] = 24,
    light: Annotated[
        bool, typer.Option("--light", help="Without a model: quick, and no proof of the real one.")
    ] = False,
    gap_s: Annotated[float, typer.Option(min=0.1, help="Between two faults, in the mean.")] = 6.0,
    faults: Annotated[int | None, typer.Option(help="At most; else until the last job is begun.")] = None,
    lease_s: Annotated[float, typer.Option(min=1.0)] = 4.0,
    rest_s: Annotated[float, typer.Option(min=1.0, help="For the farm to finish, once the faults are over.")] = 120.0,
    folder: Annotated[Path, typer.Option(help="For logs and the ledger, in one of their own.")] = Path("build/chaos"),
) -> None:
    """Disturb a farm and see that no job is lost, doubled or wrong. Exit code 1 if one is."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # so that everything is tidied up
    plan = Plan(seed, jobs, workers, steps, light, gap_s, faults, lease_s, rest_s)
    done = run(plan, folder.resolve() / f"seed-{seed}")
    made = make_report(plan, done)
    print_report(made)
    if report is not None:
        write_report(report, made)
    raise typer.Exit(0 if is_passed(plan, done) else 1)


if __name__ == "__main__":
    typer.run(main)
