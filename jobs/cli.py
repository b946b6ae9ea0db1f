"""Commands of a client: submit, watch, status and cancel. Others take their options from here."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from jobs.client import Client, JobHandle
from jobs.connection import connect
from jobs.errors import JobFailed, JobNotFound, JobsError
from jobs.events import Event
from jobs.found_pictures import FoundPictures
from jobs.job_status import JobState
from jobs.progress import describe, open_display
from jobs.queues import QueueName
from jobs.request import Attention, GenerateRequest, Mode, Precision
from jobs.result import NamedStore, Result, read_result
from jobs.settings import ClientSettings, read_settings
from jobs.store import Store, open_store
from jobs.submission import check_webhook

app = typer.Typer()

Url = Annotated[str | None, typer.Option("--url", help="Redis URL (env: REDIS_URL; else the embedded one)")]
StoreUrl = Annotated[
    str | None, typer.Option("--store", help="file:///folder or s3://bucket/prefix (env: H3_STORE_URL)")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# Of a request, for one render and for a file of them.
Height = Annotated[int | None, typer.Option(help="Pixels, a multiple of 32.")]
Aspect = Annotated[str | None, typer.Option(help="Like 16:9; snaps. Instead of width and height.")]
ShortSide = Annotated[int | None, typer.Option(help="Pixels; snaps. Goes with --aspect.")]
Frames = Annotated[int | None, typer.Option(help="17n + 5, at 24 a second.")]
Seconds = Annotated[float | None, typer.Option(help="Snaps up. Instead of frames.")]
Steps = Annotated[int | None, typer.Option(help="Denoising steps.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Its id, as `h3render submit` prints it.")]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Tell a person what is wrong, without a traceback: exit 2 for what they can mend, 1 for a failed job."""
    try:
        yield
    except JobsError as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(1 if isinstance(exc, JobFailed) else 2) from exc


def client_settings(url: str | None, store: str | None) -> ClientSettings:
    return read_settings(ClientSettings, redis_url=url, store_url=store)


def open_named_store(settings: ClientSettings) -> Store | None:
    """The store that somebody has named, if anybody has: opened now, so that a wrong URL is told before all else."""
    return open_store(settings.store_url) if settings.names_store else None


# --- submit


@app.command()
def submit(
    prompt: Annotated[str, typer.Argument(help="What should be seen and heard.")],
    width: Annotated[int | None, typer.Option(help="Pixels, a multiple of 32.")] = None,
    height: Height = None,
    aspect: Aspect = None,
    short_side: ShortSide = None,
    frames: Frames = None,
    seconds: Seconds = None,
    steps: Steps = None,
    seed: Annotated[int | None, typer.Option(help="Drawn when left out.")] = None,
    preview_every: Annotated[int | None, typer.Option(help="Steps between previews; 0 for none.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    first_frame: Annotated[
        str | None,
        typer.Option(
            metavar="PICTURE", help="That the video begins with: a file, or an object of the store by key or URL."
        ),
    ] = None,
    last_frame: Annotated[str | None, typer.Option(metavar="PICTURE", help="And one that it ends with.")] = None,
    mode: Annotated[Mode, typer.Option(help="How GPUs share the render; auto takes any worker.")] = Mode.AUTO,
    precision: Annotated[Precision, typer.Option(help="Of the weights; auto takes any worker.")] = Precision.AUTO,
    attention: Annotated[Attention, typer.Option(help="What computes it; auto takes any worker.")] = Attention.AUTO,
    deadline: Annotated[float | None, typer.Option(help="Seconds from now, after which nobody wants it.")] = None,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="In queue high: a batch job may be put back for it.")
    ] = False,
    key: Annotated[str | None, typer.Option(help="Submitting again with the same key gives the same job.")] = None,
    queue: Annotated[QueueName, typer.Option(help="Served in this order.")] = QueueName.DEFAULT,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="That `h3render serve` calls at the end.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
    url: Url = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Queue a render and print its id."""
    fields = {
        "prompt": prompt,
        "width": width,
        "height": height,
        "aspect": aspect,
        "short_side": short_side,
        "frames": frames,
        "seconds": seconds,
        "steps": steps,
        "seed": seed,
        "preview_every": preview_every,
        "checkpoint_every": checkpoint_every,
        "mode": mode,
        "precision": precision,
        "attention": attention,
        "deadline_s": deadline,
        "preempt": preempt,
    }
    with plain_errors():
        settings = client_settings(url, store)
        named = open_named_store(settings) if watch else None
        pictures = FoundPictures(settings)
        named_pictures = {"first_frame": first_frame, "last_frame": last_frame}
        fields |= {name: pictures.find_key(text, Path()) for name, text in named_pictures.items() if text is not None}
        request = GenerateRequest.parse({name: value for name, value in fields.items() if value is not None})
        if webhook is not None:
            check_webhook(webhook)
        client = Client(connect(settings))
        pictures.upload([request.first_frame, request.last_frame])
        job = client.submit(request, queue=queue, idempotency_key=key, webhook=webhook)
        tell_submitted(job, as_json=as_json, and_more=watch)
        if watch:
            follow(job, named, as_json=as_json)


def tell_submitted(job: JobHandle, *, as_json: bool, and_more: bool) -> None:
    """The id; and what sizes snapped to and which seed was drawn, unless that comes with what follows."""
    if as_json:
        typer.echo(json.dumps({"id": job.id, "request": job.request().model_dump(mode="json")}))
        return
    typer.echo(job.id)
    if not and_more:
        typer.echo(describe(job.news()[0]), err=True)


# --- watch


@app.command()
def watch(
    job_id: JobId,
    since: Annotated[str | None, typer.Option(metavar="EVENT_ID", help="Only what was told after that event.")] = None,
    url: Url = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an event a line.")] = False,
) -> None:
    """Follow a job to its end, from its first event."""
    with plain_errors():
        settings = client_settings(url, store)
        named = open_named_store(settings)
        follow(Client(connect(settings)).job(job_id), named, since=since, as_json=as_json)


def follow(
    job: JobHandle,
    store: Store | None,
    while_waiting: Callable[[], None] | None = None,
    *,
    since: str | None = None,
    as_json: bool = False,
) -> None:
    """Show progress; at the end print where video, report and playlist are. Raises JobFailed.

    store          that the worker writes to; else the one that the job's last event names
    while_waiting  called about once a second while nothing is new; else what the job waits for is shown
    """
    if as_json:
        last = _print_events(job, since)
    else:
        with open_display() as display:
            wait = while_waiting or (lambda: display.note(job.status()))
            last = display.tell_all(job.events(since=since, while_waiting=wait))
    finished = job.conclude(last or _find_last(job))
    opened = NamedStore(store).find(finished.store_url, job.id)
    _print_result(read_result(opened, job.id), opened, as_json=as_json)


def _print_events(job: JobHandle, since: str | None) -> Event | None:
    last: Event | None = None
    for last in job.events(since=since):
        typer.echo(json.dumps(event_to_dict(last)))
    return last


def event_to_dict(event: Event) -> dict[str, object]:
    """For JSON, with the id to go on from."""
    return {"id": event.id, "at": event.at and event.at.isoformat(), **event.model_dump(mode="json")}


def _find_last(job: JobHandle) -> Event | None:
    """For who has heard nothing, because all of it was told before."""
    return next(reversed(job.news()), None)


def _print_result(result: Result, store: Store, *, as_json: bool) -> None:
    keys = {"video": result.video_key, "report": result.report_key, "playlist": result.playlist_key}
    places = {name: store.url(key) for name, key in keys.items() if key is not None}
    if as_json:
        typer.echo(json.dumps({"result": result.model_dump(mode="json"), **places}))
        return
    for name, place in places.items():
        typer.echo(f"{name:<9} {place}")


# --- status and cancel


@app.command()
def status(job_id: JobId, url: Url = None, as_json: Json = False) -> None:
    """Where a job stands, and what was last told about it."""
    with plain_errors():
        job = Client(connect(client_settings(url, None))).job(job_id)
        where, news = job.status(), job.news()
        if where.state is JobState.UNKNOWN:
            raise JobNotFound(f"job {job_id}: {where.reason}")
    if as_json:
        typer.echo(json.dumps({**where.model_dump(mode="json"), "events": [event_to_dict(event) for event in news]}))
    else:
        typer.echo(f"{job.id} {where.describe()}")
        for event in news[-1:]:
            typer.echo(describe(event))


@app.command()
def cancel(
    job_id: JobId,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only if this one is the one that runs.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """End a job that is no longer wanted: at once if it waits, else between two steps. What it published stays."""
    with plain_errors():
        has_ended = Client(connect(client_settings(url, None))).job(job_id).cancel(attempt=attempt)
    if as_json:
        typer.echo(json.dumps({"id": job_id, "outcome": "canceled" if has_ended else "stopping"}))
    else:
        typer.echo(f"{job_id} {'canceled' if has_ended else 'is being stopped'}")
