"""Commands of whoever runs a farm: its workers, its queues, and the end of a job."""

import json
from collections.abc import Callable, Iterable
from typing import Annotated

import typer
from redis import Redis
from rich import box
from rich.console import Console
from rich.table import Table

from jobs.cli import Json, Url, client_settings, plain_errors
from jobs.client import Client
from jobs.connection import connect, redis_errors
from jobs.workers import (
    WorkerRecord,
    drain_worker,
    pause_queue,
    pause_worker,
    read_workers,
    resume_queue,
    resume_worker,
    server_time,
)

app = typer.Typer()
worker_app = typer.Typer()  # beside the command that runs one
queue_app = typer.Typer(no_args_is_help=True, help="Hold a queue back, and let it go on.")
app.add_typer(queue_app, name="queue")

WorkerName = Annotated[
    str, typer.Argument(metavar="NAME", help="As `h3render workers` shows it, or the id of one process.")
]
QueueArgument = Annotated[str, typer.Argument(metavar="NAME", help="high, default, batch, or one of your own.")]


@app.command()
def cancel(
    job_id: str,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only if this one is the one that runs.")] = None,
    url: Url = None,
) -> None:
    """End a job that is no longer wanted: at once if it waits, else between two steps. What it published stays."""
    with plain_errors():
        has_ended = Client(connect(client_settings(url, None))).job(job_id).cancel(attempt=attempt)
    typer.echo(f"{job_id} {'canceled' if has_ended else 'is being stopped'}")


@app.command()
def workers(url: Url = None, as_json: Json = False) -> None:
    """Every worker: its state, job, step, fleet, GPU memory, last beat, and why it takes no job."""
    with plain_errors(), redis_errors():
        redis = connect(client_settings(url, None))
        found, now = read_workers(redis), server_time(redis)
    if as_json:
        typer.echo(json.dumps([worker.model_dump(mode="json") for worker in found]))
    elif found:
        _print(found, now)
    else:
        typer.echo("no worker is known: start one with `h3render worker`", err=True)


def _print(found: Iterable[WorkerRecord], now: float) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("worker", "state", "job", "step", "fleet", "ranks", "GPU memory", "last beat", "reason"):
        table.add_column(heading, overflow="fold")
    for worker in found:
        table.add_row(*_row(worker, now))
    Console(highlight=False, markup=False).print(table)


def _row(worker: WorkerRecord, now: float) -> tuple[str, ...]:
    job = worker.job
    return (
        worker.name,
        worker.state,
        f"{job.job_id} ({job.attempt})" if job else "",
        f"{job.phase} {job.step}/{job.steps}" if job else "",
        worker.fleet,
        f"{len(worker.ranks)}, {sum(rank.rss_bytes for rank in worker.ranks) / 2**30:.1f} GiB",
        ", ".join(f"{gpu.used_bytes / 2**30:.0f}/{gpu.total_bytes / 2**30:.0f} GiB" for gpu in worker.gpus),
        f"{max(0.0, now - worker.beat_at):.0f} s ago",
        worker.reason.partition("\n")[0],
    )


@worker_app.command("pause")
def pause_worker_(name: WorkerName, url: Url = None) -> None:
    """Let a worker take no more jobs until it is resumed; the one it runs goes on."""
    _act(url, lambda redis: pause_worker(redis, name))


@worker_app.command("resume")
def resume_worker_(name: WorkerName, url: Url = None) -> None:
    """Let a paused worker take jobs again."""
    _act(url, lambda redis: resume_worker(redis, name))


@worker_app.command("drain")
def drain_worker_(name: WorkerName, url: Url = None) -> None:
    """Let a worker end as by SIGTERM: its job goes back to the head of its queue with what is done."""
    _act(url, lambda redis: drain_worker(redis, name))


@queue_app.command("pause")
def pause_queue_(name: QueueArgument, url: Url = None) -> None:
    """Let no worker take anything of a queue; what runs goes on."""
    _act(url, lambda redis: pause_queue(redis, name))


@queue_app.command("resume")
def resume_queue_(name: QueueArgument, url: Url = None) -> None:
    """Let its jobs be taken again."""
    _act(url, lambda redis: resume_queue(redis, name))


def _act(url: str | None, act: Callable[[Redis], None]) -> None:
    with plain_errors(), redis_errors():
        act(connect(client_settings(url, None)))
