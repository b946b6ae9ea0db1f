"""The command `h3render serve`."""

import signal
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.cli import StoreUrl, Url, plain_errors
from jobs.connection import connect
from jobs.errors import RedisRefused, RedisUnavailable, SettingsInvalid
from jobs.settings import read_settings

if TYPE_CHECKING:
    from jobs.http.settings import ServeSettings

app = typer.Typer()

EXIT_TRY_LATER = 75  # as in docs/operations.md
BACKLOG = 2048
SHUTDOWN_S = 2  # for answers that are on their way; event streams go on with the next service


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (env: H3_SERVE_HOST; else 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(help="(env: H3_SERVE_PORT; else 8000; 0: any that is free)")] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="File of bearer tokens, lines NAME TOKEN (env: H3_TOKENS_FILE)")
    ] = None,
    url: Url = None,
    store: StoreUrl = None,
) -> None:
    """Serve renders over HTTP: an API that OpenAI's clients speak, and a page."""
    import uvicorn

    from jobs.http.app import build_app
    from jobs.http.callers import is_loopback
    from jobs.http.settings import ServeSettings
    from jobs.logs import configure_logs

    with plain_errors():
        settings = read_settings(
            ServeSettings, serve_host=host, serve_port=port, tokens_file=tokens, redis_url=url, store_url=store
        )
        if settings.tokens_file is None and not is_loopback(settings.serve_host):
            raise SettingsInvalid(
                f"H3_SERVE_HOST {settings.serve_host} lets others in, and there are no tokens: name a file of them, "
                "H3_TOKENS_FILE or --tokens, or listen on 127.0.0.1"
            )
        service = build_app(settings)
        _await_nobody(settings)
        listener = _listen(settings.serve_host, settings.serve_port)
    configure_logs(settings.log_format)
    config = uvicorn.Config(
        service,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which uvicorn raises again once it has stopped
    with closing(listener):
        typer.echo(f"http://{_name(listener)}")
        uvicorn.Server(config).run(sockets=[listener])


def _await_nobody(settings: "ServeSettings") -> None:
    """A supervisor, and not we, waits for a Redis that is away. Raises RedisRefused."""
    try:
        connect(settings).close()
    except RedisRefused:
        raise
    except RedisUnavailable as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(EXIT_TRY_LATER) from exc


def _listen(host: str, port: int) -> socket.socket:
    """Raises SettingsInvalid."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(BACKLOG)  # before the URL is told
    except OSError as exc:
        listener.close()
        raise SettingsInvalid(f"{host}:{port} cannot be listened on ({exc.strerror}): choose another --port") from exc
    return listener


def _name(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
