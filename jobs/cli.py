"""Commands of a client: submit, watch, status, and the embedded Redis."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from jobs import embedded
from jobs.client import Client, JobHandle
from jobs.connection import connect, redis_errors
from jobs.dead import list_dead
from jobs.errors import JobFailed, JobNotFound, JobsError, RedisUnavailable, SettingsInvalid
from jobs.lease import LEASE_S, Leases, Reaped
from jobs.progress import describe, show
from jobs.queues import QueueName
from jobs.reaper import Reaper
from jobs.request import GenerateRequest, Mode, Precision
from jobs.retention import DEFAULT_AGES as AGES
from jobs.retention import Ages
from jobs.retention_cli import Report, find_all
from jobs.settings import ClientSettings
from jobs.store import Store, open_store

app = typer.Typer()
redis_app = typer.Typer(no_args_is_help=True, help="The embedded Redis of this user.")
app.add_typer(redis_app, name="redis")
dead_app = typer.Typer(no_args_is_help=True, help="Jobs that have used up their attempts, and what is no job.")
app.add_typer(dead_app, name="dead")

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
        request = GenerateRequest.parse({name: value for name, value in fields.items() if value is not None})
        opened = open_store(settings.store_url) if watch else None
        job = Client(connect(settings)).submit(request, queue=queue, idempotency_key=key)
        typer.echo(job.id)
        if opened is not None:
            follow(job, opened)
        else:
            typer.echo(describe(job.news()[0]), err=True)  # what sizes snapped to, which seed was drawn


@app.command()
def watch(job_id: str, url: Url = None, store: StoreUrl = None) -> None:
    """Follow a job to its end, from its first event."""
    with plain_errors():
        settings = client_settings(url, store)
        follow(Client(connect(settings)).job(job_id), open_store(settings.store_url))


def follow(job: JobHandle, store: Store, while_waiting: Callable[[], None] = lambda: None) -> None:
    """Show progress; at the end print where video, report and playlist are. Raises JobFailed."""
    job.conclude(show(job.events(while_waiting=while_waiting)))
    result = job.result(store)
    for name, key in (("video", result.video_key), ("report", result.report_key), ("playlist", result.playlist_key)):
        if key is not None:
            typer.echo(f"{name:<9} {store.url(key)}")


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
            typer.echo(f"    {reason}")


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
