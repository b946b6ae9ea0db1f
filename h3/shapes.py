"""Shapes of videos as an option of a command."""

from typing import Annotated

import typer

from h3.errors import ConfigError
from h3.sequence import Geometry


def parse_shape(text: str) -> Geometry:
    """WIDTHxHEIGHTxFRAMES. Raises BadParameter."""
    try:
        width, height, frames = map(int, text.split("x"))
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r} is not WIDTHxHEIGHTxFRAMES, as in 864x480x141") from exc
    try:
        return Geometry(width, height, frames)
    except ConfigError as exc:
        raise typer.BadParameter(str(exc)) from exc


Shapes = Annotated[
    list[Geometry] | None,
    typer.Option(
        "--shape",
        parser=parse_shape,
        metavar="WxHxF",
        help="Pixels, multiples of 32, and frames, 17n + 5; may be given again.",
    ),
]
