"""What the commands for pods work with, and what they have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from infra.clock import Clock
from infra.errors import InfraError
from infra.ledger import Ledger
from infra.pod_names import check_pod_id
from infra.settings import PodSettings, read_pod_settings

if TYPE_CHECKING:
    from infra.runpod import RunPod

PodId = Annotated[str, typer.Argument(metavar="POD_ID", help="As `list` and `create` print it.")]
Count = Annotated[int, typer.Option(min=1, help="GPUs on one machine.")]
Gpu = Annotated[
    str | None, typer.Option(help="Id in the catalog (env: H3_PODS_GPU; else the RTX PRO 6000 server edition)")
]


@dataclass(frozen=True, slots=True)
class Desk:
    """What the commands work with."""

    settings: PodSettings
    api: "RunPod"
    ledger: Ledger
    clock: Clock


@contextmanager
def plain_errors() -> Iterator[None]:
    """Tell a person what is wrong, without a traceback; the class has the exit code."""
    try:
        yield
    except InfraError as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(exc.exit_code) from exc


@contextmanager
def open_desk(settings: PodSettings) -> Iterator[Desk]:
    """With the key of the settings. Raises KeyUnusable."""
    from infra.runpod import RunPod

    clock = Clock()
    with RunPod(settings.runpod_api_url, settings.key, clock) as api:
        yield Desk(settings, api, Ledger(settings.ledger, clock), clock)


def read_settings_for(pod_id: str) -> PodSettings:
    """Once the id is one: what is wrong with a command is told before the key is looked at."""
    check_pod_id(pod_id)
    return read_pod_settings()


def note(line: str) -> None:
    """Beside the result: on stderr."""
    typer.echo(line, err=True)
