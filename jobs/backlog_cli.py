"""The command that tells how much work there is, for people and for whoever rents machines."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from redis import Redis

from jobs.backlog import MOST_JOBS, Backlog, read_backlog
from jobs.cli import Json, Url, client_settings, plain_errors
from jobs.connection import connect, redis_errors
from jobs.in_words import say_count, say_duration
from jobs.offers import Offer
from jobs.render_times import DEFAULT_PACE_S, RenderTimes, read_render_times
from jobs.workers import find_workers

app = typer.Typer()


@app.command()
def backlog(
    like: Annotated[
        str | None,
        typer.Option(metavar="WORKER", help="For machines like this one: its queues, abilities and measured times."),
    ] = None,
    pace: Annotated[
        float, typer.Option(min=1e-6, help="Seconds a megapixel of a frame and step, where nothing was measured.")
    ] = DEFAULT_PACE_S,
    most: Annotated[int, typer.Option(min=1, help="Waiting jobs that are looked at; of more, some.")] = MOST_JOBS,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """How much work waits and runs, in seconds of one machine, by measured renders."""
    with plain_errors(), redis_errors():
        redis = connect(client_settings(url, None))
        offer, times = None, read_render_times(redis, pace_s=pace)
        if like is not None:
            offer, times = _be_like(redis, like, times)
        found = read_backlog(redis, offer=offer, times=times, most_jobs=most)
    if as_json:
        typer.echo(json.dumps(to_dict(found)))
    else:
        _print(found)


def _be_like(redis: Redis, worker: str, times: RenderTimes) -> tuple[Offer, RenderTimes]:
    offer = find_workers(redis, worker)[0].offer
    return offer, times.measured_on(offer.world_size, offer.model_digest)


def to_dict(backlog: Backlog) -> dict[str, object]:
    """For JSON, with its sums."""
    return asdict(backlog) | {
        "jobs": backlog.jobs,
        "seconds": backlog.seconds,
        "waiting_s": backlog.waiting_s,
        "running_s": backlog.running_s,
        "is_estimated": backlog.is_estimated,
    }


def _print(backlog: Backlog) -> None:
    rows = [("class", "jobs", "each", "together"), *_make_rows(backlog)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *amounts in rows:
        cells = [name.ljust(widths[0]), *map(str.rjust, amounts, widths[1:])]
        typer.echo("  ".join(cells))
    for line in _say_reservations(backlog):
        typer.echo(line)


def _make_rows(backlog: Backlog) -> Iterator[tuple[str, str, str, str]]:
    for one in backlog.waiting:
        yield one.label, f"{one.count:,}", say_duration(one.seconds_each), say_duration(one.seconds)
    waiting = backlog.jobs - len(backlog.running)
    yield "waiting", f"{waiting:,}", "", say_duration(backlog.waiting_s)
    yield "running", f"{len(backlog.running):,}", "", say_duration(backlog.running_s)
    yield "together", f"{backlog.jobs:,}", "", say_duration(backlog.seconds)


def _say_reservations(backlog: Backlog) -> Iterator[str]:
    if backlog.unplaceable:
        told = say_count(backlog.unplaceable, "more job")
        yield f"unplaceable: {told}, for what such a machine has not; `h3render list --state waiting` tells more"
    if backlog.is_estimated:
        yield f"estimated: {backlog.looked_at:,} of {backlog.queued:,} that are queued were looked at"
