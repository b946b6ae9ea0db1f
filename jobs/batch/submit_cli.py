"""The command `batch submit`."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from jobs.batch.record import Batch, Plan, PlannedRow, QueuedRow, explain_conflicts
from jobs.cli import (
    Aspect,
    Frames,
    Height,
    Json,
    Seconds,
    ShortSide,
    Steps,
    StoreUrl,
    Url,
    client_settings,
    plain_errors,
)
from jobs.client import Client
from jobs.connection import connect
from jobs.errors import KeyConflict, PictureInvalid, RedisUnavailable, SettingsInvalid
from jobs.found_pictures import FoundPictures
from jobs.in_words import say_count
from jobs.queues import QueueName
from jobs.request import Mode, Precision
from jobs.shots.file import read_shots
from jobs.submission import Outcome

EXIT_INTERRUPTED = 130  # as a shell says it
PICTURE_FIELDS = ("first_frame", "last_frame")


def submit_batch(
    file: Annotated[Path, typer.Argument(help="A row for each shot: .csv, .jsonl or .yaml.")],
    name: Annotated[str, typer.Option("--name", help="Of the batch: letters, digits and . _ -")],
    queue: Annotated[QueueName, typer.Option(help="For rows that name none.")] = QueueName.BATCH,
    width: Annotated[int | None, typer.Option(help="For rows that name none, like all of these.")] = None,
    height: Height = None,
    aspect: Aspect = None,
    short_side: ShortSide = None,
    frames: Frames = None,
    seconds: Seconds = None,
    steps: Steps = None,
    mode: Annotated[Mode | None, typer.Option(help="How GPUs share a render.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="Of the weights.")] = None,
    more: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any other field of a row; repeatable.")
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Also if the file has no row of those queued before.")] = False,
    url: Url = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Check a whole file, and then queue what is new in it. May be repeated: nothing is queued twice."""
    fields: dict[str, object] = {
        "width": width,
        "height": height,
        "aspect": aspect,
        "short_side": short_side,
        "frames": frames,
        "seconds": seconds,
        "steps": steps,
        "mode": mode,
        "precision": precision,
    }
    with plain_errors():
        settings = client_settings(url, store)
        pictures = FoundPictures(settings)
        named = {field: value for field, value in fields.items() if value is not None}
        defaults = replace_paths(add_pairs(named, more or []), pictures)
        shots = read_shots(
            file, defaults=defaults, queue=queue, find_key=lambda text: pictures.find_key(text, file.parent)
        )
        client = Client(connect(settings))
        batch = Batch(client.redis, name)
        plan = batch.plan(shots, may_add=add)
        done: list[QueuedRow] = []
        with telling_break_off(done, len(plan.rows)):
            pictures.upload(find_needed(plan.rows))
            done.extend(batch.queue(plan, client))
        tell_submitted(name, plan, done, as_json=as_json)


def replace_paths(defaults: Mapping[str, object], pictures: FoundPictures) -> dict[str, object]:
    """With keys in place of pictures, whose paths begin where the command was given. Raises PictureInvalid."""
    keys = dict(defaults)
    for field in PICTURE_FIELDS:
        if isinstance(text := defaults.get(field), str):
            try:
                keys[field] = pictures.find_key(text, Path())
            except PictureInvalid as exc:
                raise PictureInvalid(f"every shot, field {field}: {exc}") from exc
    return keys


def find_needed(rows: Sequence[PlannedRow]) -> Iterator[str | None]:
    """Keys of the pictures of rows that are not queued yet."""
    for row in rows:
        if not row.known_job:
            yield from (row.shot.request.first_frame, row.shot.request.last_frame)


@contextmanager
def telling_break_off(done: Sequence[QueuedRow], rows: int) -> Iterator[None]:
    """Say how far it has come, and the remedy, if a person or Redis breaks a submit off."""
    try:
        yield
    except (KeyboardInterrupt, RedisUnavailable) as exc:
        typer.echo(f"broken off after {len(done):,} of {say_count(rows, 'row')}: run it again", err=True)
        if isinstance(exc, RedisUnavailable):
            raise
        raise typer.Exit(EXIT_INTERRUPTED) from exc


def tell_submitted(name: str, plan: Plan, done: Sequence[QueuedRow], *, as_json: bool) -> None:
    """Raises KeyConflict."""
    outcomes = Counter(each.outcome for each in done)
    told = {"rows": len(done), "queued": outcomes[Outcome.QUEUED], "known": outcomes[Outcome.KNOWN], "gone": plan.gone}
    if as_json:
        jobs = [each.row.model_dump(exclude={"order", "digest"}) for each in done]
        typer.echo(json.dumps({"batch": name, **told, "jobs": jobs}))
    else:
        gone = f"; {plan.gone:,} of the batch {'is' if plan.gone == 1 else 'are'} not in this file" if plan.gone else ""
        typer.echo(f"{say_count(len(done), 'row')}: {told['queued']:,} queued, {told['known']:,} known{gone}")
    if conflicts := [each.row for each in done if each.outcome is Outcome.CONFLICT]:
        raise KeyConflict(explain_conflicts(name, conflicts))


def add_pairs(named: Mapping[str, object], pairs: Sequence[str]) -> dict[str, object]:
    """What options say, and what `--set` adds, each field once. Raises SettingsInvalid."""
    fields = dict(named)
    for pair in pairs:
        field, equals, value = pair.partition("=")
        if not (field and equals):
            raise SettingsInvalid(f"--set {pair!a} is no FIELD=VALUE: write it like --set checkpoint_every=4")
        if field in fields:
            raise SettingsInvalid(f"--set {pair!a} gives {field} a second time: give it once")
        fields[field] = value
    return fields
