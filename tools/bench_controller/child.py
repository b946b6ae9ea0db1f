"""A process that starts a fleet of its own: to be killed with it, or to race with others like it.

It says "ready", waits for a line, starts, gives its fleet one job, and says the ranks' process ids as the ranks gave
them. It ends when its stdin does, so never later than who made it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import typer

from tools.bench_controller.fleets import START_LIMIT_S, Setting
from tools.bench_controller.probe import PARKED_S

REPOSITORY = Path(__file__).parents[2]
KILL_LIMIT_S = 10.0


class ChildFailedError(RuntimeError):
    """It ended, or said nothing in time."""


class Child:
    """The process as its maker sees it."""

    def __init__(self, setting: Setting, task: str) -> None:
        command = [sys.executable, "-m", "tools.bench_controller.child", setting.backend, str(setting.ranks), task]
        # A killed controller cannot remove its ranks' logs.
        self._folder = tempfile.TemporaryDirectory(prefix="bench-controller-", ignore_cleanup_errors=True)
        environment = {**os.environ, "TMPDIR": self._folder.name}
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def await_ready(self) -> None:
        self._hear()

    def start_fleet(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def await_ranks(self) -> list[int]:
        """Their process ids, once each is in its job."""
        pids: list[int] = json.loads(self._hear())
        return pids

    def kill(self) -> None:
        self._process.kill()

    def _hear(self) -> str:
        output = self._process.stdout
        assert output is not None
        has_come, _, _ = select.select([output], [], [], START_LIMIT_S)
        line = output.readline() if has_come else ""
        if not line:
            raise ChildFailedError(f"process {self._process.pid} ended or said nothing for {START_LIMIT_S:g} s")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(KILL_LIMIT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._folder.cleanup()


def main(backend: str, ranks: int, task: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed in a terminal it is for our maker, who then ends us
    may_start = threading.Event()
    threading.Thread(target=_follow_stdin, args=(may_start,), daemon=True).start()
    typer.echo("ready")
    may_start.wait(START_LIMIT_S)
    controller = Setting("nccl" if backend == "nccl" else "gloo", ranks).start_fleet()
    stream = controller.stream(task=task, timeout=PARKED_S)
    pids = [next(stream) for _ in range(ranks)]
    if set(pids) != {rank.pid for rank in controller.status().ranks}:
        raise ChildFailedError(f"ranks {pids} answered, which are another fleet's")
    typer.echo(json.dumps(pids))
    time.sleep(PARKED_S)


def _follow_stdin(may_start: threading.Event) -> None:
    sys.stdin.readline()
    may_start.set()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    typer.run(main)
