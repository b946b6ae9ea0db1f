"""Simulates nights of a farm on rented pods, and checks what must be true of each; one alone with --night N --verbose.

python tools/simulate_nights --nights 1000 --seed 1 --report benchmarks/reports/nights-1000.json
"""

import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[2]))  # a folder that is run sees only its inside

from tools.simulate_nights.check import judge
from tools.simulate_nights.figures import NightFigures, measure_night
from tools.simulate_nights.nights import Night
from tools.simulate_nights.reconciled import run_reconciled
from tools.simulate_nights.report import is_passed, make_report, print_report, write_report


def main(
    nights: Annotated[int, typer.Option(min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed makes the same nights.")] = 1,
    processes: Annotated[int, typer.Option(min=1)] = 2,
    report: Annotated[Path | None, typer.Option(help="Where to write a JSON report.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw cost against waiting, as a PNG.")] = None,
    night: Annotated[int | None, typer.Option(min=0, help="This one alone.")] = None,
    verbose: Annotated[bool, typer.Option(help="With --night: print what the reconciler says.")] = False,
) -> None:
    """Simulate nights. Exit code 1 if one broke a claim."""
    _be_quiet()
    if night is not None:
        raise typer.Exit(_show(Night(seed, night), verbose=verbose))
    began_s = time.monotonic()
    measured = sorted(_measure(seed, nights, processes), key=lambda figures: figures.night)
    print_report(measured)
    if report is not None:
        write_report(report, make_report(seed, measured, time.monotonic() - began_s))
    if plot is not None:
        from tools.simulate_nights.plot import draw_nights

        draw_nights(measured, plot)
    raise typer.Exit(0 if is_passed(measured) else 1)


def _measure(seed: int, nights: int, processes: int) -> Iterator[NightFigures]:
    with multiprocessing.Pool(processes, _be_quiet) as pool:
        measured = pool.imap_unordered(partial(_measure_one, seed), range(nights))
        yield from track(measured, "nights", total=nights, disable=not sys.stderr.isatty())


def _measure_one(seed: int, number: int) -> NightFigures:
    return measure_night(Night(seed, number))


def _be_quiet() -> None:
    """What goes wrong in a night is meant to."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _show(night: Night, *, verbose: bool) -> int:
    """The exit code."""

    def tell(at_s: float, line: str) -> None:
        if verbose:
            typer.echo(f"{int(at_s) // 3600:02}:{int(at_s) // 60 % 60:02}:{int(at_s) % 60:02}  {line}")

    facts = run_reconciled(night, tell)
    violations = judge(facts).violations
    for one in violations:
        typer.echo(f"{one.at_s:.0f} s: {one.claim}: {one.what}")
    left = sum(not job.ended_s for job in facts.jobs)
    typer.echo(
        f"night {night.number}: {len(facts.jobs)} jobs, {left} left, {len(facts.pods)} pods, "
        f"{facts.usd:.2f} of {facts.usd_total:.2f} USD, {sum(facts.crashes.values())} crashes"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    typer.run(main)
