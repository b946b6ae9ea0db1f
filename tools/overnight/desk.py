"""Whoever queues the batch in the evening and reads of it in the morning: only the command `h3render`."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import DIES_WITH_PARENT
from tools.chaos.supervised import REPOSITORY
from tools.overnight.farm import Farm

BATCH = "night-01"
SHOTS, WATCHED, TOLD, REPORT = "shots.csv", "watched.jsonl", "told.json", "report"
COMMAND_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one command."""

    code: int
    text: str  # from stdout
    errors: str  # from stderr


class Desk:
    """Files lie in `folder`, where commands are given."""

    def __init__(self, farm: Farm, folder: Path) -> None:
        self._folder = folder
        self._environment = {**farm.environment, "PYTHONPATH": str(REPOSITORY)}

    def submit(self, shots: str) -> Answer:
        """Save a file and queue it."""
        (self._folder / SHOTS).write_text(shots, encoding="utf-8", newline="")
        return self._run("batch", "submit", SHOTS, "--name", BATCH)

    @contextmanager
    def watching(self, price: float) -> Iterator[subprocess.Popen[bytes]]:
        """`batch watch --json`, which ends by itself when all rows have ended."""
        command = self._command("batch", "watch", BATCH, "--json", "--price", str(price))
        with (self._folder / WATCHED).open("wb") as output:
            process = subprocess.Popen(command, cwd=self._folder, env=self._environment, stdout=output)
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def report(self, price: float) -> Answer:
        """Write the morning's report, and keep what the command tells of it."""
        told = self._run("batch", "report", BATCH, "--out", REPORT, "--price", str(price), "--json")
        (self._folder / TOLD).write_text(told.text)
        return told

    def _run(self, *arguments: str) -> Answer:
        done = subprocess.run(
            self._command(*arguments), cwd=self._folder, env=self._environment, capture_output=True, text=True,
            timeout=COMMAND_LIMIT_S, check=False,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    def _command(self, *arguments: str) -> list[str]:
        return [*DIES_WITH_PARENT, sys.executable, "-m", "h3render", *arguments]
