"""Commands about the embedded Redis: `redis status` and `redis stop`."""

from pathlib import Path

import typer

from jobs import embedded
from jobs.cli import client_settings, plain_errors

app = typer.Typer()
redis_app = typer.Typer(no_args_is_help=True, help="The embedded Redis of this user.")
app.add_typer(redis_app, name="redis")


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
