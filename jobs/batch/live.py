"""Shows a batch that is watched: one live table on a terminal, else a line whenever something has changed."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jobs.batch.progress import Counts, Progress
from jobs.batch.watcher import FailedRow, RunningRow, Snapshot
from jobs.in_words import say_duration
from jobs.plain_text import plain

MOST_RUNNING = 20  # rows of the table
BAR_CELLS = 40
COLORS = {"finished": "green", "running": "cyan", "failed": "red", "dead": "red", "canceled": "yellow"}


def show_batch(snapshots: Iterable[Snapshot], *, as_json: bool, console: Console | None) -> Snapshot | None:
    """Show snapshots until they end; the last one. `console`: where to draw, if somebody is there to see it."""
    if as_json:
        return _print_changes(snapshots, lambda snapshot: json.dumps(snapshot.to_dict()))
    return _print_changes(snapshots, describe_batch) if console is None else _draw(snapshots, console)


def _print_changes(snapshots: Iterable[Snapshot], describe: Callable[[Snapshot], str]) -> Snapshot | None:
    last: Snapshot | None = None
    for snapshot in snapshots:
        if last is None or snapshot.news != last.news:
            typer.echo(describe(snapshot))
        last = snapshot
    return last


def _draw(snapshots: Iterable[Snapshot], console: Console) -> Snapshot | None:
    last: Snapshot | None = None
    with Live(console=console, auto_refresh=False) as live:
        for last in snapshots:
            live.update(draw_batch(last), refresh=True)
    return last


def describe_batch(snapshot: Snapshot) -> str:
    """One line of all that is counted."""
    parts = (snapshot.progress.counts.describe(), *_describe_pace(snapshot.progress), snapshot.waiting_for)
    return "; ".join(part for part in parts if part)


def _describe_pace(progress: Progress) -> Iterator[str]:
    if progress.rate_per_hour is not None:
        yield f"{_say_rate(progress.rate_per_hour)} an hour"
    if progress.counts.left and progress.left_s is not None:
        yield f"about {say_duration(progress.left_s)} left"
    if progress.busy_s:
        yield f"machines busy for {say_duration(progress.busy_s)}"
    if progress.cost is not None:
        yield f"cost {progress.cost:,.2f}"


def _say_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def draw_batch(snapshot: Snapshot) -> RenderableType:
    """The figures first: what does not fit a screen is cut off at its end."""
    counts = snapshot.progress.counts
    lines = [Text(f"batch {snapshot.name}", "bold"), _draw_bar(counts), Text(counts.describe())]
    lines.append(Text(", ".join(_describe_pace(snapshot.progress)), "dim"))
    if snapshot.waiting_for:
        lines.append(Text(plain(snapshot.waiting_for), "yellow"))
    return Group(*lines, _draw_rows(snapshot)) if snapshot.running or snapshot.failures else Group(*lines)


def _draw_rows(snapshot: Snapshot) -> Table:
    """Every text is taken as it is: labels and reasons come from anywhere."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading, most in (("row", 32), ("state", None), ("", None)):
        table.add_column(heading, overflow="ellipsis", no_wrap=True, max_width=most)
    for row in snapshot.running[:MOST_RUNNING]:
        table.add_row(Text(plain(row.label)), Text("running", COLORS["running"]), Text(plain(_describe_running(row))))
    if (more := len(snapshot.running) - MOST_RUNNING) > 0:
        table.add_row("", "", f"and {more} more")
    for failure in snapshot.failures:
        table.add_row(Text(plain(failure.label)), Text(failure.state, COLORS["failed"]), _first_line(failure))
    return table


def _describe_running(row: RunningRow) -> str:
    worker = f"attempt {row.attempt} on {row.worker or 'a worker'}"
    return f"{row.phase} {row.step}/{row.steps}, {worker}" if row.phase else worker


def _first_line(failure: FailedRow) -> Text:
    return Text(plain(failure.reason.partition("\n")[0]))


def _draw_bar(counts: Counts) -> Text:
    """A cell for each part of the rows; every state that has rows gets at least one."""
    bar = Text()
    for name, count in asdict(counts).items():
        cells = max(1, round(BAR_CELLS * count / counts.rows)) if count else 0
        bar.append("━" * cells, COLORS.get(name, "bright_black"))
    return bar
