"""The demo: one clip from a prompt, through the real queue, a real worker process and the real store."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import typer

from jobs.cli import follow
from jobs.client import Client, JobHandle
from jobs.connection import connect
from jobs.queues import open_queue
from jobs.request import GenerateRequest, Precision
from jobs.store import open_store
from worker.errors import StartRefused
from worker.settings import WorkerSettings

CLIP = {"width": 256, "height": 160, "frames": 39, "steps": 16, "preview_every": 6, "checkpoint_every": 8}
KNOWN = (
    "The demo's model is small. It knows sentences like this one: a red circle moving right over blue, low tone.\n"
    "  shapes    circle, square, triangle\n"
    "  colours   red, green, blue, yellow, purple, white, black\n"
    "  moving    left, right, up, down\n"
    "  tones     low, middle, high; on the left, on the right"
)
STOP_TIMEOUT_S = 20.0
LOG_TAIL_LINES = 20
# Another number when what `h3render checkpoint demo` writes has changed: one in the cache may be an older program's.
MODEL_NAME = "demo-model-1-{}"


def run_demo(settings: WorkerSettings, prompt: str, precision: Precision, seed: int | None) -> None:
    """Render `prompt` with the small model that comes with the program and print where the results are.

    Raises what a client raises, and StartRefused with the end of the worker's log if it stops early.
    """
    request = GenerateRequest.parse({"prompt": prompt, "seed": seed, **CLIP})
    store = open_store(settings.store_url)
    redis = connect(settings)
    # A queue of its own: the small model must never take anybody's real job.
    queue = f"demo-{uuid4().hex}"
    settings.cache_dir.mkdir(parents=True, exist_ok=True)
    log = settings.cache_dir / f"{queue}.log"
    try:
        checkpoint = _checkpoint(settings.cache_dir, precision)
        job = Client(redis).submit(request, queue=queue)
        with _worker(queue, checkpoint, precision, log) as check_alive:
            follow(job, store, while_waiting=check_alive)
        sheet = _draw_sheet(job, settings.cache_dir / f"{queue}.png")
    finally:
        open_queue(queue, redis).delete()
    typer.echo(f"log       {log}")
    typer.echo(f"sheet     {sheet}")
    typer.echo(KNOWN)


def _draw_sheet(job: JobHandle, path: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        _run("sheet", str(job.fetch(Path(folder))), str(path))
    return path


def _checkpoint(cache_dir: Path, precision: Precision) -> Path:
    """Where the model lies; written at the first run."""
    stored = Precision.NVFP4 if precision is Precision.NVFP4 else Precision.BF16  # FP8 is rounded when it is loaded
    folder = cache_dir / MODEL_NAME.format(stored)
    if not folder.exists():
        partial = Path(tempfile.mkdtemp(prefix="demo-model-", dir=cache_dir)) / "model"
        _run("checkpoint", "demo", str(partial), "--precision", stored)
        with suppress(OSError):  # another demo has finished its own first; the bytes are the same
            partial.rename(folder)
        shutil.rmtree(partial.parent)
    return folder


@contextmanager
def _worker(queue: str, checkpoint: Path, precision: Precision, log: Path) -> Iterator[Callable[[], None]]:
    """A worker process that ends with the block. Yields what raises StartRefused once it has ended by itself."""
    # Redis and store come from the environment that both share: a URL may hold a password, a command line is public.
    # Burst: it ends by itself even if nobody is left to end it.
    model = ("--checkpoint", str(checkpoint), "--precision", precision)
    command = _command("worker", *model, "--queue", queue, "--burst")
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
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask twice, as the worker gives its job back at the second time, then insist."""
    for ask in (process.terminate, process.terminate, process.kill):
        ask()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            return


def _run(*arguments: str) -> None:
    subprocess.run(_command(*arguments), check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "h3render", *arguments]
