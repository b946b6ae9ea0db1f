"""Commands over many renders at once: `batch submit`, `watch`, `retry`, `cancel`, `report` and `list`."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jobs.batch.live import show_batch
from jobs.batch.progress import Counts, RowState
from jobs.batch.record import Batch, list_batches
from jobs.batch.report.copies import open_copier
from jobs.batch.report.figures import RowReport, count_up, read_reports
from jobs.batch.report.write import write_report
from jobs.batch.states import cancel_rows, read_statuses, retry_rows
from jobs.batch.submit_cli import submit_batch
from jobs.batch.watcher import BatchWatcher
from jobs.cli import Json, StoreUrl, Url, client_settings, plain_errors
from jobs.connection import connect
from jobs.errors import SettingsInvalid
from jobs.in_words import say_count
from jobs.workers import server_time

app = typer.Typer()
batch_app = typer.Typer(no_args_is_help=True, help="Many renders from one file, under one name.")
app.add_typer(batch_app, name="batch")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As `h3render batch list` shows it.")]


def check_price(price: float | None) -> float | None:
    """Raises BadParameter for what multiplies to no number."""
    if price is not None and not math.isfinite(price):
        raise typer.BadParameter(f"{price} is no price: give a number")
    return price


Price = Annotated[
    float | None,
    typer.Option(min=0, metavar="PER_HOUR", callback=check_price, help="Of one worker machine, to tell the cost."),
]

batch_app.command("submit")(submit_batch)


@batch_app.command("list")
def list_all_batches(url: Url = None, as_json: Json = False) -> None:
    """Every batch that is known, the oldest first."""
    with plain_errors():
        redis = connect(client_settings(url, None))
        found = [(entry, read_statuses(redis, Batch(redis, entry.name).peek())) for entry in list_batches(redis)]
    counted = [(entry, Counts.of(status.state for status in statuses)) for entry, statuses in found]
    if as_json:
        typer.echo(json.dumps([entry.to_dict() | {"rows": counts.rows, **asdict(counts)} for entry, counts in counted]))
    for entry, counts in counted if not as_json else ():
        typer.echo(f"{entry.name}  {entry.submitted_at:%Y-%m-%d %H:%M} UTC  {counts.describe()}")
    if not counted:
        typer.echo("no batch is known: queue one with `h3render batch submit`", err=True)


@batch_app.command("watch")
def watch_batch(name: Name, price: Price = None, url: Url = None, as_json: Json = False) -> None:
    """Follow a batch until all its rows have ended. Exit 0 if every one has finished, else 1."""
    with plain_errors():
        redis = connect(client_settings(url, None))
        watcher = BatchWatcher(redis, Batch(redis, name), price)
        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        is_seen = console.is_terminal and sys.stdout.isatty()
        last = show_batch(watcher.follow(), as_json=as_json, console=console if is_seen else None)
    if last is not None and last.progress.counts.finished < last.progress.counts.rows:
        raise typer.Exit(1)


@batch_app.command("retry")
def retry_batch(
    name: Name,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed or died.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Give rows without a result all their attempts back; they go on from what is kept."""
    with plain_errors():
        if not failed:
            raise SettingsInvalid("say which rows: --failed takes those that failed or died")
        redis = connect(client_settings(url, None))
        statuses = read_statuses(redis, Batch(redis, name).rows())
        done = retry_rows(redis, statuses)
    if as_json:
        typer.echo(json.dumps({"batch": name, "rows": len(statuses), "retried": done.queued, "late": done.late}))
        return
    typer.echo(
        f"{say_count(len(statuses), 'row')}: {done.queued:,} queued again"
        + (f", {done.late:,} late" if done.late else "")
    )
    if done.late:
        typer.echo(
            f"{say_count(done.late, 'row')} left out: deadline_s, which counts from the submit, has passed, so workers "
            "would give them up at once; submit them as another batch, with a longer one or none",
            err=True,
        )


@batch_app.command("cancel")
def cancel_batch(name: Name, url: Url = None, as_json: Json = False) -> None:
    """End what is still to end: rows that wait at once, those that run between two steps."""
    with plain_errors():
        redis = connect(client_settings(url, None))
        statuses = read_statuses(redis, Batch(redis, name).rows())
        done = cancel_rows(redis, statuses)
    if as_json:
        typer.echo(json.dumps({"batch": name, "rows": len(statuses), **asdict(done)}))
        return
    never = sum(status.state is RowState.NOT_QUEUED for status in statuses)
    ended = len(statuses) - done.canceled - done.stopping - never
    told = f"{done.canceled:,} canceled, {done.stopping:,} being stopped, {ended:,} had ended"
    typer.echo(f"{say_count(len(statuses), 'row')}: {told}" + (f", {never:,} not queued" if never else ""))


@batch_app.command("report")
def report_batch(
    name: Name,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", file_okay=False, help="Else one with the batch's name.")
    ] = None,
    price: Price = None,
    videos: Annotated[bool, typer.Option("--videos", help="Copy the videos too, instead of links to them.")] = False,
    url: Url = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Write what a batch has come to: report.html with a contact sheet, and report.csv."""
    with plain_errors():
        settings = client_settings(url, store)
        redis = connect(settings)
        rows, now = Batch(redis, name).rows(), server_time(redis)
        reports = read_reports(redis, rows)
        store_url = settings.store_url if settings.names_store else find_store(reports, settings.store_url)
        folder = out or Path(name)
        copier = open_copier(store_url, folder, is_named=settings.names_store)
        with folder_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            written = write_report(name, reports, count_up(reports, now, price), now, copier, videos)
    if as_json:
        typer.echo(json.dumps(written.to_dict()))
    else:
        written.tell()


def find_store(reports: Sequence[RowReport], default: str) -> str:
    """Where workers say that they have put results."""
    return next((report.told.store_url for report in reports if report.told.store_url), default)


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Raises SettingsInvalid for a folder that cannot be written to."""
    try:
        yield
    except OSError as exc:
        raise SettingsInvalid(f"{exc.filename or folder}: {exc.strerror}: give another folder with --out") from exc
