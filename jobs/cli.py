"""Commands of a client: submit, watch, status, cancel, and the embedded Redis."""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from jobs import embedded
from jobs.client import Client, JobHandle
from jobs.connection import connect
from jobs.errors import JobFailed, JobsError, SettingsInvalid
from jobs.pictures import Picture, read_picture
from jobs.progress import describe, show
from jobs.queues import QueueName
from jobs.request import GenerateRequest, Mode, Precision
from jobs.settings import ClientSettings
from jobs.store import Store, open_store

app = typer.Typer()
redis_app = typer.Typer(no_args_is_help=True, help="The embedded Redis of this user.")
app.add_typer(redis_app, name="redis")

Settings = TypeVar("Settings", bound=ClientSettings)
Url = Annotated[str | None, typer.Option("--url", help="Redis URL (env: REDIS_URL; else the embedded one)")]
StoreUrl = Annotated[
    str | None, typer.Option("--store", help="file:///folder or s3://bucket/prefix (env: H3_STORE_URL)")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Tell a person what is wrong, without a traceback: exit 2 for what they can mend, 1 for a failed job."""
    try:
        yield
    except JobsError as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(1 if isinstance(exc, JobFailed) else 2) from exc


def read_settings(kind: type[Settings], **flags: object) -> Settings:
    """The environment's settings, overridden by the flags that were given. Raises SettingsInvalid."""
    try:
        given = {name: value for name, value in flags.items() if value is not None}
        return kind(**given)  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as exc:
        lines = [f"{_variable(kind, e['loc'])} {e['input']!r}: {e['msg'].lower()}" for e in exc.errors()]
        raise SettingsInvalid("\n".join(lines)) from exc


def _variable(kind: type[ClientSettings], location: tuple[int | str, ...]) -> str:
    """What a person calls a setting: its variable in the environment."""
    name = str(location[0])
    return name if name.isupper() else f"{kind.model_config['env_prefix']}{name}".upper()


def client_settings(url: str | None, store: str | None) -> ClientSettings:
    return read_settings(ClientSettings, redis_url=url, store_url=store)


@app.command()
def submit(
    prompt: Annotated[str, typer.Argument(help="What should be seen and heard.")],
    width: Annotated[int | None, typer.Option(help="Pixels, a multiple of 32.")] = None,
    height: Annotated[int | None, typer.Option(help="Pixels, a multiple of 32.")] = None,
    aspect: Annotated[str | None, typer.Option(help="Like 16:9; snaps. Instead of width and height.")] = None,
    short_side: Annotated[int | None, typer.Option(help="Pixels; snaps. Goes with --aspect.")] = None,
    frames: Annotated[int | None, typer.Option(help="17n + 5, at 24 a second.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Snaps up. Instead of frames.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Drawn when left out.")] = None,
    preview_every: Annotated[int | None, typer.Option(help="Steps between previews; 0 for none.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    first_frame: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A picture that the video begins with.")
    ] = None,
    last_frame: Annotated[Path | None, typer.Option(metavar="FILE", help="And one that it ends with.")] = None,
    mode: Annotated[Mode, typer.Option(help="How GPUs share the render; auto takes any worker.")] = Mode.AUTO,
    precision: Annotated[Precision, typer.Option(help="Of the weights; auto takes any worker.")] = Precision.AUTO,
    deadline: Annotated[float | None, typer.Option(help="Seconds from now, after which nobody wants it.")] = None,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="In queue high: a batch job may be put back for it.")
    ] = False,
    key: Annotated[str | None, typer.Option(help="Submitting again with the same key gives the same job.")] = None,
    queue: Annotated[QueueName, typer.Option(help="Served in this order.")] = QueueName.DEFAULT,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
    url: Url = None,
    store: StoreUrl = None,
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
        "deadline_s": deadline,
        "preempt": preempt,
    }
    with plain_errors():
        settings = client_settings(url, store)
        files = {"first_frame": first_frame, "last_frame": last_frame}
        pictures = {name: read_picture(path) for name, path in files.items() if path is not None}
        fields |= {name: picture.key for name, picture in pictures.items()}
        request = GenerateRequest.parse({name: value for name, value in fields.items() if value is not None})
        # Now, and not when it is needed: a wrong URL is told before anything is queued.
        watched = open_store(settings.store_url) if watch else None
        job = upload_then_queue(settings, pictures.values(), request, queue, key)
        typer.echo(job.id)
        if watched is not None:
            follow(job, watched)
        else:
            typer.echo(describe(job.news()[0]), err=True)  # what sizes snapped to, which seed was drawn


def upload_then_queue(
    settings: ClientSettings, pictures: Collection[Picture], request: GenerateRequest, queue: QueueName, key: str | None
) -> JobHandle:
    """Nothing is uploaded for a Redis that does not answer, nor queued with a picture that the store does not take."""
    store = open_store(settings.store_url) if pictures else None
    client = Client(connect(settings))
    if store is not None:
        for picture in pictures:
            picture.put(store)
    return client.submit(request, queue=queue, idempotency_key=key)


@app.command()
def watch(job_id: str, url: Url = None, store: StoreUrl = None) -> None:
    """Follow a job to its end, from its first event."""
    with plain_errors():
        settings = client_settings(url, store)
        follow(Client(connect(settings)).job(job_id), open_store(settings.store_url))


def follow(job: JobHandle, store: Store, while_waiting: Callable[[], None] | None = None) -> None:
    """Show progress; at the end print where video, report and playlist are. Raises JobFailed.

    while_waiting  called about once a second while nothing is new; else what the job waits for is told
    """
    job.conclude(show(job.events(while_waiting=while_waiting or _teller(job))))
    result = job.result(store)
    for name, key in (("video", result.video_key), ("report", result.report_key), ("playlist", result.playlist_key)):
        if key is not None:
            typer.echo(f"{name:<9} {store.url(key)}")


def _teller(job: JobHandle) -> Callable[[], None]:
    """Tells what the job waits for, whenever that is something else."""
    told = ""

    def tell() -> None:
        nonlocal told
        if (waiting := job.waiting_for()) != told:
            told = waiting
            if waiting:
                typer.echo(waiting, err=True)

    return tell


@app.command()
def status(job_id: str, url: Url = None, as_json: Json = False) -> None:
    """Where a job stands, and what was last told about it."""
    with plain_errors():
        job = Client(connect(client_settings(url, None))).job(job_id)
        state, news, waiting_for = job.status(), job.news(), job.waiting_for()
    if as_json:
        told = [event.model_dump() for event in news]
        typer.echo(json.dumps({"id": job.id, "status": state, "waiting_for": waiting_for, "events": told}))
    else:
        typer.echo(f"{job.id} {state}{waiting_for and f', {waiting_for}'}")
        for event in news[-1:]:
            typer.echo(describe(event))


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


@redis_app.command("status")
def redis_status() -> None:
    """Whether it runs, and where."""
    with plain_errors():
        server = embedded.find_running(**_place())
    typer.echo(f"{server.version}, pid {server.pid}, unix://{server.socket}" if server else "not running")


@redis_app.command("stop")
def redis_stop() -> None:
    """End it; queued jobs stay on disk and are there at the next start."""
    with plain_errors():
        stopped = embedded.stop(**_place())
    typer.echo("stopped" if stopped else "not running")


def _place() -> dict[str, Path | None]:
    settings = client_settings(None, None)
    return {"state_folder": settings.state_dir, "runtime_folder": settings.runtime_dir}
