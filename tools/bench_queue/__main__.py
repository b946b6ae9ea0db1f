"""Measures what queue, lease, events and uploads add to a render, and how fast clients are served, on this machine.

Says which goals are met.

python tools/bench_queue --store s3://bucket/bench benchmarks/reports/queue-2cores.json
"""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from redis import Redis
from redis.exceptions import RedisError
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))  # a folder that is run sees only its inside

from worker.collector import uncollected_imports

with uncollected_imports():
    from jobs.errors import JobsError
    from tools.bench_queue.farm import Farm, private_redis
    from tools.bench_queue.measured import Amount, Measured
    from tools.bench_queue.report import print_table, write_report
    from tools.bench_queue.rows import ROWS, Row, Verdict
    from worker.mgpu import AsymmetricRunnerError, SymmetricRunnerError

SLUGS = ", ".join(row.slug for row in ROWS)


def main(
    report: Annotated[Path | None, typer.Argument(help="Where to write a JSON report.")] = None,
    store: Annotated[str | None, typer.Option(help="s3://bucket/prefix to measure with, besides a folder.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Measure this row; may be given again. Rows: {SLUGS}.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Of the worker, and of the fleet alone.")] = 2,
    enqueue_jobs: Annotated[int, typer.Option(min=1)] = 2000,
    empty_jobs: Annotated[int, typer.Option(min=2)] = 50,
    render_s: Annotated[float, typer.Option(min=1.0, help="How long the render takes by itself.")] = 20.0,
    idle_s: Annotated[float, typer.Option(min=1.0, help="How long a waiting worker is watched.")] = 30.0,
    follow_s: Annotated[float, typer.Option(min=0.1, help="How long the followers of a job are told of it.")] = 5.0,
    records: Annotated[int, typer.Option(min=1, help="Finished jobs whose memory is measured.")] = 200,
    many_jobs: Annotated[int, typer.Option(min=2, help="That are submitted at once.")] = 10_000,
) -> None:
    """Measure the farm's overhead and answers here, with a Redis of its own. Exit code 1 if a goal is missed."""
    chosen = choose_rows(only or [])
    amount = Amount(enqueue_jobs, empty_jobs, render_s, idle_s, follow_s, records, many_jobs)
    with tempfile.TemporaryDirectory(prefix="h3-bench-") as name, private_redis() as redis_url:
        folder = Path(name)
        verdicts = measure_all(chosen, Farm(redis_url, (folder / "store").as_uri(), folder, ranks), amount)
        if store is not None:
            with_store = [row for row in chosen if row.needs_store]
            verdicts += measure_all(with_store, Farm(redis_url, store, folder, ranks), amount)
        server = describe_server(redis_url)
    print_table(verdicts)
    if report is not None:
        write_report(report, verdicts, server, ranks)
    raise typer.Exit(0 if all(verdict.met for verdict in verdicts) else 1)


def choose_rows(only: list[str]) -> list[Row]:
    """In their own order."""
    if unknown := [slug for slug in only if slug not in {row.slug for row in ROWS}]:
        raise typer.BadParameter(f"{', '.join(unknown)}; there are {SLUGS}", param_hint="--only")
    return [row for row in ROWS if not only or row.slug in only]


def measure_all(rows: list[Row], farm: Farm, amount: Amount) -> list[Verdict]:
    progress = Console(stderr=True)
    verdicts = []
    with farm:
        for row in rows:
            store = farm.store_url.partition(":")[0] if row.needs_store else ""
            with progress.status(f"{row.title} {store}"):
                verdicts.append(Verdict(row, store, measure(row, farm, amount)))
    return verdicts


def measure(row: Row, farm: Farm, amount: Amount) -> Measured:
    """A row that breaks down is a missed goal, and the next ones are measured all the same."""
    try:
        return row.measure(farm, amount)
    except (RuntimeError, OSError, JobsError, RedisError, SymmetricRunnerError, AsymmetricRunnerError) as error:
        return Measured(error=f"{type(error).__name__}: {error}")


def describe_server(redis_url: str) -> str:
    with Redis.from_url(redis_url) as redis:
        facts = redis.info("server")
    name = facts.get("server_name", "redis")
    return f"{name} {facts[f'{name}_version']}"


if __name__ == "__main__":
    typer.run(main)
