"""Commands about checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from h3.errors import H3Error

app = typer.Typer()
checkpoint_app = typer.Typer(no_args_is_help=True, help="Write and check checkpoints.")
app.add_typer(checkpoint_app, name="checkpoint")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Tell a person what is wrong, without a traceback, and exit 2."""
    try:
        yield
    except (H3Error, OSError) as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(2) from exc


@checkpoint_app.command("tiny")
def write_tiny_checkpoint(
    folder: Annotated[Path, typer.Argument(help="Where to write it.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
) -> None:
    """Write an untrained H3 of toy size, in the official layout: for trying things out; its picture is noise."""
    from h3.tiny import write_tiny

    with plain_errors():
        write_tiny(folder, seed)
    typer.echo(folder)


@checkpoint_app.command("check")
def check_checkpoint(folder: Annotated[Path, typer.Argument(help="Root of a checkpoint.")]) -> None:
    """Check from the files' headers that nothing is missing or cut short."""
    from h3.checkpoint import ModelFolder

    with plain_errors():
        parts = ModelFolder.below(folder)
        parts.check()
        typer.echo(f"whole, digest {parts.digest()}")


@app.command()
def bench(
    checkpoint: Annotated[Path, typer.Argument(help="Root of a checkpoint.")],
    width: Annotated[int, typer.Option(help="Pixels.")] = 256,
    height: Annotated[int, typer.Option(help="Pixels.")] = 160,
    frames: Annotated[int, typer.Option(help="17n + 5.")] = 39,
    steps: Annotated[int, typer.Option(help="Steps to time.")] = 10,
) -> None:
    """Time denoise steps on one device (the first GPU, else the CPU) and print JSON."""
    import json
    from dataclasses import asdict

    import torch

    from h3.bench import time_steps
    from h3.sequence import Geometry

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    with plain_errors():
        timing = time_steps(checkpoint, Geometry(width, height, frames), steps, device)
    typer.echo(json.dumps(asdict(timing), indent=2))
