"""Commands about what a job has rendered: fetch and play."""

import json
from pathlib import Path
from typing import Annotated

import typer

from jobs.cli import JobId, Json, StoreUrl, Url, client_settings, open_named_store, plain_errors
from jobs.client import Client
from jobs.connection import connect
from jobs.fetching import find_result
from jobs.players import find_program
from jobs.playing import play
from jobs.store import open_store

app = typer.Typer()


@app.command()
def fetch(
    job_id: JobId,
    to: Annotated[Path, typer.Option(metavar="FOLDER", file_okay=False, help="Made if need be.")] = Path(),
    everything: Annotated[
        bool, typer.Option("--all", help="And every piece: report, previews, segments and their playlist.")
    ] = False,
    url: Url = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Copy a finished job's video to a folder, and print where it is."""
    with plain_errors():
        settings = client_settings(url, store)
        named = open_named_store(settings)
        found = find_result(connect(settings), named, job_id)
        paths = [found.fetch_video(to)]
        if everything:
            paths += found.fetch_others(to)
    if as_json:
        typer.echo(json.dumps({"id": job_id, "video": str(paths[0]), "paths": list(map(str, paths))}))
    else:
        typer.echo("\n".join(map(str, paths)))


@app.command("play")
def play_(
    job_id: JobId,
    player: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Else the first found of mpv, ffplay and vlc.")
    ] = None,
    url: Url = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Play a render, while it is still decoded if need be."""
    with plain_errors():
        program = find_program(player)
        settings = client_settings(url, store)
        named = open_named_store(settings)
        job = Client(connect(settings), named).job(job_id)
        exit_code = play(job, named or open_store(settings.store_url), program)
    if as_json:
        typer.echo(json.dumps({"id": job_id, "player": program.name, "exit_code": exit_code}))
    if exit_code:
        typer.echo(f"{program.name} ended with exit code {exit_code}: see what it says above", err=True)
        raise typer.Exit(1)
