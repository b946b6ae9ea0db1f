"""The commands `h3render pods ...`. What speaks HTTP is imported when one is called."""

import logging

import typer

import infra.boot_cli
import infra.change_cli
import infra.look_cli
import infra.reconcile_cli
from jobs.logs import LogFormat, configure_logs

app = typer.Typer()
pods_app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
pods_app.add_typer(infra.change_cli.app)
pods_app.add_typer(infra.look_cli.app)
pods_app.add_typer(infra.reconcile_cli.app)
pods_app.add_typer(infra.boot_cli.app)
app.add_typer(pods_app, name="pods")


@pods_app.callback()
def pods() -> None:
    """Rented machines at RunPod: what is free, and one pod at a time."""
    configure_logs(LogFormat.AUTO, level=logging.WARNING)
