"""Commands of one machine: worker, demo, doctor."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

import jobs.operator_cli
from jobs.cli import StoreUrl, Url, plain_errors
from jobs.errors import RedisRefused, RedisUnavailable, StoreRefused, StoreUnavailable
from jobs.queues import QueueName
from jobs.request import Attention, Mode, Precision
from jobs.settings import read_settings
from worker.collector import uncollected_imports
from worker.errors import StartRefused, Unhealthy, WorkerError
from worker.settings import Backend, WorkerSettings

app = typer.Typer()

# As in docs/operations.md. The last two are those of sysexits.h for what they mean.
EXIT_FAILED, EXIT_WRONG_USAGE, EXIT_TRY_LATER, EXIT_UNHEALTHY = 1, 2, 75, 78

DEMO_PROMPT = "a red circle moving right over blue, low tone"

SharingMode = Annotated[
    Mode | None, typer.Option("--mode", help="How ranks share a render (env: H3_MODE; auto: as the runner does)")
]

WeightPrecision = Annotated[
    Precision | None, typer.Option(help="Of the model's weights (env: H3_PRECISION; auto: as the checkpoint has them)")
]

worker_app = typer.Typer(invoke_without_command=True)
worker_app.add_typer(jobs.operator_cli.worker_app)
app.add_typer(worker_app, name="worker")


@worker_app.callback()
def worker(
    context: typer.Context,
    checkpoint: Annotated[Path | None, typer.Option(help="Root of a checkpoint (env: H3_MODEL_PATH)")] = None,
    ranks: Annotated[int | None, typer.Option(help="Rank processes (env: H3_WORLD_SIZE; else one a GPU)")] = None,
    mode: SharingMode = None,
    precision: WeightPrecision = None,
    attention: Annotated[
        Attention | None, typer.Option(help="What computes it where a request names none (env: H3_ATTENTION)")
    ] = None,
    backend: Annotated[Backend | None, typer.Option(help="(env: H3_BACKEND)")] = None,
    runner: Annotated[str | None, typer.Option(help="module:class (env: H3_RUNNER)")] = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="Served in this order; repeatable (default: high, default, batch)")
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="End when the queues are empty.")] = False,
    name: Annotated[str | None, typer.Option(help="(env: H3_WORKER_NAME; else the host's)")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Of /metrics and /healthz (env: H3_METRICS_PORT)")] = None,
    url: Url = None,
    store: StoreUrl = None,
) -> None:
    """Take jobs from the queue and render them on this machine's GPUs, one at a time."""
    if context.invoked_subcommand is not None:
        return
    from worker.logs import configure_logs
    from worker.surroundings import require_surroundings

    with plain_errors(), start_refusals():
        settings = read_settings(
            WorkerSettings,
            model_path=checkpoint,
            world_size=ranks,
            mode=mode,
            precision=precision,
            attention=attention,
            backend=backend,
            runner=runner,
            redis_url=url,
            store_url=store,
            worker_name=name,
            metrics_port=metrics_port,
        )
        configure_logs(settings.log_format)
        require_surroundings(settings)
        # Here, for torch takes a second to import, and what is wrong so far is told without it. With the collector off
        # that takes a seventh less time.
        with uncollected_imports():
            from worker.serve import serve
        serve(settings, queue or list(QueueName), burst=burst)


@contextmanager
def start_refusals() -> Iterator[None]:
    """Say why there is no worker, without a traceback of ours; the exit code tells a supervisor what to do about it."""
    try:
        yield
    except (RedisRefused, StoreRefused):
        raise  # a person has to act
    except (WorkerError, RedisUnavailable, StoreUnavailable) as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(_exit_code(exc)) from exc


def _exit_code(error: Exception) -> int:
    match error:
        case StartRefused():
            return EXIT_WRONG_USAGE
        case Unhealthy():
            return EXIT_UNHEALTHY
        case RedisUnavailable() | StoreUnavailable():
            return EXIT_TRY_LATER
    return EXIT_FAILED


@app.command()
def demo(
    prompt: Annotated[str, typer.Argument(help="A shape that moves, and a tone.")] = DEMO_PROMPT,
    precision: Annotated[
        Literal[Precision.BF16, Precision.NVFP4, Precision.FP8],
        typer.Option(help="Of the model's weights: 16 bits, 4, or 8 (activations, too)."),
    ] = Precision.BF16,
    seed: Annotated[int | None, typer.Option(min=0, help="Drawn when left out.")] = None,
) -> None:
    """Render one small clip on this machine, with a small model that draws moving shapes and plays a tone."""
    from worker.demo import run_demo

    with plain_errors(), start_refusals():
        run_demo(read_settings(WorkerSettings), prompt, precision, seed)


@app.command()
def doctor(
    checkpoint: Annotated[Path | None, typer.Option(help="Root of a checkpoint (env: H3_MODEL_PATH)")] = None,
    ranks: Annotated[int | None, typer.Option(help="Rank processes (env: H3_WORLD_SIZE; else one a GPU)")] = None,
    mode: SharingMode = None,
    precision: WeightPrecision = None,
    url: Url = None,
    store: StoreUrl = None,
) -> None:
    """Check what a worker needs on this machine, say how to mend what fails, and plan where a model's parts stay."""
    from worker.doctor import examine

    failed = 0
    with plain_errors():
        settings = read_settings(
            WorkerSettings,
            model_path=checkpoint,
            world_size=ranks,
            mode=mode,
            precision=precision,
            redis_url=url,
            store_url=store,
        )
    for finding in examine(settings):
        failed += bool(finding.remedy)
        typer.echo(f"{'FAIL' if finding.remedy else 'ok':<5} {finding.subject:<17} {finding.found}")
        if finding.remedy:
            typer.echo(f"      {finding.remedy}")
    raise typer.Exit(1 if failed else 0)
