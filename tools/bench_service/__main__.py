"""Polls and streams of many clients on the HTTP service, with one restart of Redis in between, and checks all answers.

python tools/bench_service benchmarks/reports/service-2cores.json --pollers 200 --streams 50 --seconds 60
"""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[2]))  # a folder that is run sees only its inside

from tools.bench_service.measured import Plan
from tools.bench_service.report import is_passed, make_report, print_report, write_report
from tools.bench_service.run import run


def main(
    report: Annotated[Path | None, typer.Argument(help="Where to write a JSON report.")] = None,
    pollers: Annotated[int, typer.Option(min=1, help="Clients that ask for a render once a second.")] = 200,
    streams: Annotated[int, typer.Option(min=1, help="Clients that follow a render's events.")] = 50,
    seconds: Annotated[float, typer.Option(min=2.0, help="Of load; Redis is restarted in the middle.")] = 60.0,
    down_s: Annotated[float, typer.Option(min=0.1, help="How long Redis is away.")] = 2.0,
    job_s: Annotated[float, typer.Option(min=0.5, help="How long a render takes, in the mean.")] = 8.0,
    pace: Annotated[float, typer.Option(min=0.1, help="Events a second that each render tells.")] = 5.0,
    cut_every: Annotated[int, typer.Option(min=1, help="Events after which a stream is cut by its client.")] = 50,
) -> None:
    """Load the service, with Redis and store of its own. Exit code 1 if anything is not as it should be."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # so that everything is tidied up
    plan = Plan(pollers, streams, seconds, down_s, job_s, pace, cut_every)
    done = run(plan)
    print_report(made := make_report(plan, done))
    if report is not None:
        write_report(report, made)
    raise typer.Exit(0 if is_passed(plan, done) else 1)


if __name__ == "__main__":
    typer.run(main)
