"""The demo: one clip from a prompt, through the real queue, a real worker process and the real store."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from jobs.cli import follow
from jobs.client import Client
from jobs.connection import connect, redis_url
from jobs.request import GenerateRequest
from jobs.store import open_store
from worker.settings import WorkerSettings

SIZE = {"width": 256, "height": 160, "frames": 39, "steps": 8, "preview_every": 3, "checkpoint_every": 4}
STOP_TIMEOUT_S = 30.0


def run_demo(prompt: str) -> None:
    """Render `prompt` with the untrained tiny model (or H3_MODEL_PATH) and print where the results are."""
    settings = WorkerSettings()
    request = GenerateRequest.parse({"prompt": prompt, **SIZE})
    store = open_store(settings.store_url)
    checkpoint = settings.model_path or _tiny_checkpoint(settings)
    client = Client(connect(settings))
    job = client.submit(request)
    with _worker(checkpoint, redis_url(settings), settings.store_url):
        follow(job, store)
    if settings.model_path is None:
        typer.echo("The model of this demo is untrained, so its picture is noise; everything else is real.")


def _tiny_checkpoint(settings: WorkerSettings) -> Path:
    folder = settings.cache_folder / "tiny-checkpoint"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        _run("checkpoint", "tiny", str(partial))
        partial.rename(folder)
    return folder


@contextmanager
def _worker(checkpoint: Path, url: str, store_url: str) -> Iterator[None]:
    """A worker process that ends with the block."""
    log = checkpoint.parent / "demo-worker.log"
    command = _command("worker", "--checkpoint", str(checkpoint), "--url", url, "--store", store_url)
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:  # noqa: S603
        try:
            yield
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
