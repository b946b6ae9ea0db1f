"""What the launch tools are told: how many ranks, how attention is computed, which shapes, where results are kept.

And the render that they, and the gates, make where nobody says another.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from h3.attention import AttentionName
from h3.errors import ConfigError
from h3.sequence import Geometry

CPU_WORLD_SIZE = 2
SHAPE, STEPS, SEED = Geometry(864, 480, 141), 12, 440420
TEXT_TOKENS = 300  # of a prompt of some length


def count_ranks() -> int:
    """One for every visible GPU; a few on the CPU."""
    return torch.cuda.device_count() or CPU_WORLD_SIZE


def parse_world(text: str | int) -> int:
    """A count of ranks; where there are GPUs, not more than these. Raises BadParameter."""
    gpus = torch.cuda.device_count()
    valid = f"1 to {gpus}, the visible GPUs" if gpus else "1 or more"
    try:
        world = int(text)
    except ValueError:
        world = 0
    if world < 1 or 0 < gpus < world:
        raise typer.BadParameter(f"{text!r} is no count of ranks: take {valid} (as WORLD, else H3_WORLD_SIZE)")
    return world


def parse_shape(text: str) -> Geometry:
    """WIDTHxHEIGHTxFRAMES. Raises BadParameter."""
    try:
        return Geometry.parse(text)
    except ConfigError as exc:
        raise typer.BadParameter(str(exc)) from exc


World = Annotated[
    int,
    typer.Argument(
        envvar="H3_WORLD_SIZE",
        metavar="WORLD",
        parser=parse_world,
        default_factory=count_ranks,
        show_default="every visible GPU, or 2 on the CPU",
        help="Ranks; on a GPU machine, GPUs.",
    ),
]
Backend = Annotated[AttentionName, typer.Argument(help="How attention is computed.")]
Shapes = Annotated[
    list[Geometry] | None,
    typer.Option(
        "--shape",
        parser=parse_shape,
        metavar="WxHxF",
        help="Pixels, multiples of 32, and frames, 17n + 5; may be given again.",
    ),
]
Benchmark = Annotated[
    Path | None, typer.Option(envvar="H3_DISTRIBUTED_BENCHMARK", help="A JSON file to keep the results in.")
]
