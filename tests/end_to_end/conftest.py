"""The real command as child processes, on a tiny checkpoint; each test has its own queue and store."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers import DIES_WITH_PARENT

COMMAND = [sys.executable, "-m", "h3render"]
STOP_TIMEOUT_S = 20


def run(*arguments: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Path) -> Path:
    return tiny_checkpoint


StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_worker(checkpoint: Path, tmp_path: Path) -> Iterator[StartWorker]:
    """Start `h3render worker`; it ends with the test. Its log lies in the test's folder."""
    with ExitStack() as stack:

        def start(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
            log = tmp_path / "worker.log"
            return start_process(stack, log, "--checkpoint", str(checkpoint), *arguments, **environment)

        yield start


def start_process(stack: ExitStack, log: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """The worker's; it ends with `stack`."""
    output = stack.enter_context(log.open("ab"))
    command = [*DIES_WITH_PARENT, *COMMAND, "worker", *arguments]
    process = subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=output)
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
