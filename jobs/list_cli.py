"""The command that lists jobs, as a table on a terminal and as lines elsewhere."""

import json
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console, OverflowMethod
from rich.text import Text

from jobs.cli import Json, Url, client_settings, plain_errors
from jobs.connection import connect
from jobs.in_words import say_duration
from jobs.job_status import JobState
from jobs.listing import MOST_LISTED, ListedJob, list_jobs
from jobs.operation import run
from jobs.plain_text import plain

app = typer.Typer()

HEADINGS = ("id", "state", "queue", "age", "attempt", "step or reason", "prompt")
LONGEST_REASON, LONGEST_PROMPT = 48, 60  # letters
COLORS = {JobState.FINISHED: "green", JobState.RUNNING: "cyan", JobState.FAILED: "red", JobState.DEAD: "red"}


@app.command("list")
def list_(
    state: Annotated[list[JobState] | None, typer.Option(help="Only these; repeatable.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="Only of these; repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_LISTED, help="How many at most.")] = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """The latest jobs, the one submitted last first."""
    with plain_errors():
        redis = connect(client_settings(url, None))
        found = run(list_jobs(states=state or (), queues=queue or (), limit=limit), redis)
    if as_json:
        typer.echo(json.dumps([job.model_dump(mode="json") for job in found]))
    elif found:
        show_jobs(found, time.time())
    else:
        is_chosen = bool(state or queue)
        remedy = "leave out --state or --queue" if is_chosen else "queue one with `h3render submit PROMPT`"
        typer.echo(f"no {'such ' * is_chosen}job is known: {remedy}", err=True)


def show_jobs(jobs: Sequence[ListedJob], now: float, console: Console | None = None) -> None:
    """A line for each, of which a terminal shows as much as is wide enough: an id is not cut for what follows it.

    now  seconds since 1970
    """
    console = console or Console()
    rows = [[Text(heading, "bold") for heading in HEADINGS], *(_row(job, now) for job in jobs)]
    widths = [max(row[column].cell_len for row in rows) for column in range(len(HEADINGS))]
    overflow: OverflowMethod = "ellipsis" if console.is_terminal else "ignore"
    for row in rows:
        console.print(_align(row, widths), no_wrap=True, overflow=overflow, crop=console.is_terminal)


def _row(job: ListedJob, now: float) -> Sequence[Text]:
    """Every text is taken as it is: prompts and reasons come from anywhere."""
    return (
        Text(plain(job.id)),
        Text(job.state, COLORS.get(job.state, "")),
        Text(plain(job.queue)),
        Text(_say_age(job, now)),
        Text(str(job.attempt or "")),
        Text(_shorten(describe_briefly(job), LONGEST_REASON)),
        Text(_shorten(job.prompt, LONGEST_PROMPT)),
    )


def _align(row: Sequence[Text], widths: Sequence[int]) -> Text:
    for cell, width in zip(row, widths, strict=True):
        cell.pad_right(width - cell.cell_len)
    line = Text("  ").join(row)
    line.rstrip()
    return line


def describe_briefly(job: ListedJob) -> str:
    """What its state alone does not say."""
    match job.state:
        case JobState.QUEUED:
            return "" if job.position is None else f"number {job.position}"
        case JobState.WAITING:
            return job.waiting_for.removeprefix("waiting: ")
        case JobState.RUNNING:
            step = f"{job.phase} {job.step}/{job.steps}" if job.step is not None else str(job.phase or "")
            left = f"{say_duration(job.eta_s)} left" if job.eta_s is not None else ""
            return ", ".join(part for part in (step, left, job.reason) if part)
        case _:
            return job.reason.partition("\n")[0]


def _say_age(job: ListedJob, now: float) -> str:
    return "" if job.submitted_at is None else say_duration(max(0.0, now - job.submitted_at.timestamp()))


def _shorten(text: str, most: int) -> str:
    return plain(text if len(text) <= most else f"{text[: most - 1]}…")
