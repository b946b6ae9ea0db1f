"""Measures every row of the controller's table on this machine, and says which goals are met.

python tools/bench_controller benchmarks/reports/controller-2xH200.json
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))  # a folder that is run sees only its inside

from worker.collector import uncollected_imports

with uncollected_imports():
    import torch

    from tools.bench_controller.fleets import Fleets, Setting
    from tools.bench_controller.measured import Measured
    from tools.bench_controller.report import print_table, write_report
    from tools.bench_controller.rows import Row, all_rows, judge
    from worker.mgpu import AsymmetricRunnerError, SymmetricRunnerError

SLUGS = ", ".join(row.slug for row in all_rows(soak_jobs=1))


def main(
    report: Annotated[Path | None, typer.Argument(help="Where to write a JSON report.")] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Rank processes: else all visible GPUs, or 2 on the CPU.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Gloo on the CPU, even if there is a GPU.")] = False,
    soak_jobs: Annotated[int, typer.Option(min=0, help="Jobs of the soak; 0 leaves it out.")] = 5000,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Measure this row; may be given again. Rows: {SLUGS}.")
    ] = None,
) -> None:
    """Measure the multi-GPU controller on this machine. Exit code 1 if a goal is missed."""
    setting = choose_setting(ranks, cpu)
    chosen = choose_rows(all_rows(soak_jobs), only or [], setting)
    progress = Console(stderr=True)
    verdicts = []
    with Fleets(setting) as fleets:
        for row in chosen:
            with progress.status(row.title):
                verdicts.append(judge(row, measure(row, fleets), setting))
    print_table(verdicts, setting)
    if report is not None:
        write_report(report, verdicts, setting)
    raise typer.Exit(0 if all(verdict.met for verdict in verdicts) else 1)


def choose_setting(ranks: int | None, cpu: bool) -> Setting:
    gpus = 0 if cpu else torch.cuda.device_count()
    if gpus and ranks is not None and ranks > gpus:
        raise typer.BadParameter(f"{ranks} ranks need as many GPUs, {gpus} are visible", param_hint="--ranks")
    return Setting("nccl", ranks or gpus) if gpus else Setting("gloo", ranks or 2)


def choose_rows(rows: list[Row], only: list[str], setting: Setting) -> list[Row]:
    """In their own order; without a choice, all that this machine can measure."""
    fitting = {row.slug: row for row in rows if row.fits(setting)}
    if unknown := [slug for slug in only if slug not in fitting]:
        raise typer.BadParameter(f"{', '.join(unknown)}; here are {', '.join(fitting)}", param_hint="--only")
    return [row for slug, row in fitting.items() if not only or slug in only]


def measure(row: Row, fleets: Fleets) -> Measured:
    """A row that breaks down is a missed goal, and the next ones are measured all the same."""
    try:
        return row.measure(fleets)
    except (RuntimeError, OSError, SymmetricRunnerError, AsymmetricRunnerError) as error:
        return Measured(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    typer.run(main)
