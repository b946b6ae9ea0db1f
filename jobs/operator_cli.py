"""Commands of whoever runs a farm: its workers and queues, jobs that are lost or dead, and what is old."""

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from redis import Redis
from rich import box
from rich.console import Console
from rich.table import Table

from jobs.cli import Json, StoreUrl, Url, client_settings, plain_errors
from jobs.connection import connect, redis_errors
from jobs.dead import list_dead
from jobs.errors import JobNotFound, RedisUnavailable
from jobs.lease import LEASE_S, Leases, Reaped
from jobs.reaper import Reaper
from jobs.retention import DEFAULT_AGES as AGES
from jobs.retention import Ages
from jobs.retention_cli import Report, find_all
from jobs.store import open_store
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
dead_app = typer.Typer(no_args_is_help=True, help="Jobs that have used up their attempts, and what is no job.")
app.add_typer(dead_app, name="dead")

WorkerName = Annotated[
    str, typer.Argument(metavar="NAME", help="As `h3render workers` shows it, or the id of one process.")
]
QueueArgument = Annotated[str, typer.Argument(metavar="NAME", help="high, default, batch, or one of your own.")]


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


@app.command()
def reap(
    once: Annotated[bool, typer.Option("--once", help="Look once, waiting a lease first if Redis was silent.")] = False,
    lease_s: Annotated[float, typer.Option(envvar="H3_LEASE_S", min=0.1, help="As the workers have it.")] = LEASE_S,
    url: Url = None,
) -> None:
    """Put jobs back whose worker is gone, and print them. Workers do it too: run this where none may be left."""
    with plain_errors():
        leases = Leases(connect(client_settings(url, None)), lease_s=lease_s)
        reaper = Reaper(leases)
        if once:
            with redis_errors():
                _print_reaped(reaper.look_once())
            return
        while True:
            try:
                with redis_errors():
                    for reaped in reaper.look_for_ever():
                        _print_reaped(reaped)
            except RedisUnavailable as exc:
                typer.echo(f"{exc}; trying again", err=True)
                time.sleep(leases.beat_s)


def _print_reaped(reaped: Reaped) -> None:
    for place, job_ids in (("queued", reaped.queued), ("dead", reaped.dead)):
        for job_id in job_ids:
            typer.echo(f"{job_id} {place}")


@app.command()
def gc(
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it nothing is, and all is told.")] = False,
    results_days: Annotated[int, typer.Option(min=0, max=36500, help="How long a result stays.")] = AGES.results.days,
    pieces_days: Annotated[int, typer.Option(min=0, max=36500, help="And what else nobody needs.")] = AGES.pieces.days,
    checkpoints_days: Annotated[
        int, typer.Option(min=0, max=36500, help="And checkpoints, once their job has a result.")
    ] = AGES.checkpoints.days,
    spool: Annotated[
        Path | None,
        typer.Option(envvar="H3_SPOOL_DIR", exists=True, file_okay=False, help="Of this machine's workers."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print each object.")] = False,
    url: Url = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Old results, pieces that no result names, and what dead workers left: told, and with --yes deleted."""
    with plain_errors(), redis_errors():
        settings = client_settings(url, store)
        redis, opened = connect(settings), open_store(settings.store_url)
        ages = Ages(timedelta(days=results_days), timedelta(days=pieces_days), timedelta(days=checkpoints_days))
        findings = find_all(redis, opened, spool or Path(tempfile.gettempdir()), ages)
        Report(deletes=yes, verbose=verbose, as_json=as_json).carry_out(findings)


@dead_app.command("list")
def list_dead_jobs(url: Url = None, as_json: Json = False) -> None:
    """Each with the reasons of its lost attempts."""
    with plain_errors(), redis_errors():
        found = list_dead(connect(client_settings(url, None)))
    if as_json:
        typer.echo(json.dumps([job.to_dict() for job in found]))
        return
    for job in found:
        typer.echo(f"{ascii(job.job_id)[1:-1]} {job.kind}")
        for reason in job.reasons:
            typer.echo(f"    {reason.partition(chr(10))[0]}")  # the rest, a traceback say, is in --json


@dead_app.command("retry")
def retry_dead_job(job_id: str, url: Url = None) -> None:
    """Queue a dead or failed job again, with all its attempts; it goes on from what they have kept."""
    _on_dead(job_id, url, Leases.retry_dead)


@dead_app.command("drop")
def drop_dead_job(job_id: str, url: Url = None) -> None:
    """Forget a dead or quarantined job."""
    _on_dead(job_id, url, Leases.drop_dead)


def _on_dead(job_id: str, url: str | None, act: Callable[[Leases, str], bool]) -> None:
    with plain_errors(), redis_errors():
        if not act(Leases(connect(client_settings(url, None))), job_id):
            raise JobNotFound(
                f"job {job_id} is neither dead nor failed: see `h3render dead list` and `h3render status`"
            )
