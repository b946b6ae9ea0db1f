"""The demo: one clip from a prompt, through the real queue, a real worker process and the real store."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from jobs.cli import follow
from jobs.client import Client
from jobs.connection import connect, redis_url
from jobs.request import GenerateRequest
from jobs.store import open_store
from worker.errors import StartRefused
from worker.settings import WorkerSettings

CLIP = {"width": 256, "height": 160, "frames": 39, "steps": 8, "preview_every": 3, "checkpoint_every": 4}
STOP_TIMEOUT_S = 30.0
LOG_TAIL_LINES = 20


def run_demo(prompt: str) -> None:
    """Render `prompt` with the untrained tiny model and print where the results are.

    Raises what a client raises, and StartRefused with the end of the worker's log if it stops early.
    """
    settings = WorkerSettings()
    request = GenerateRequest.parse({"prompt": prompt, **CLIP})
    store = open_store(settings.store_url)
    client = Client(connect(settings))
    settings.cache_dir.mkdir(parents=True, exist_ok=True)
    log = settings.cache_dir / "demo-worker.log"
    with _worker(settings, _tiny_checkpoint(settings.cache_dir), log) as check_alive:
        follow(client.submit(request), store, while_waiting=check_alive)
    typer.echo(f"log       {log}")
    typer.echo("The demo's model is untrained: its picture is noise. Everything around it is real.")


def _tiny_checkpoint(cache_dir: Path) -> Path:
    """Where the untrained model lies; written at the first run."""
    folder = cache_dir / "tiny-checkpoint"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        subprocess.run(_command("checkpoint", "tiny", str(partial)), check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        partial.rename(folder)
    return folder


@contextmanager
def _worker(settings: WorkerSettings, checkpoint: Path, log: Path) -> Iterator[Callable[[], None]]:
    """A worker process that ends with the block. Yields what raises StartRefused once it has ended by itself."""
    url = redis_url(settings)
    command = _command("worker", "--checkpoint", str(checkpoint), "--url", url, "--store", settings.store_url)
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:  # noqa: S603

        def check_alive() -> None:
            if process.poll() is not None:
                tail = "\n".join(log.read_text().splitlines()[-LOG_TAIL_LINES:])
                raise StartRefused(
                    f"the worker ended with exit code {process.returncode}; its log, {log}, ends:\n{tail}"
                )

        try:
            yield check_alive
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "h3render", *arguments]
