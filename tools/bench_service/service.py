"""The real command `h3render serve` as a child process, and what it takes. It ends with its block."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers import DIES_WITH_PARENT

REPOSITORY = Path(__file__).parents[2]
TOKENS = {name: f"{name}-0123456789abcdefghijklm" for name in ("ada", "bob", "cyn", "dan")}
LIMITS = {
    "H3_REQUEST_LIMIT": "1000000/minute",
    "H3_SUBMIT_LIMIT": "1000000/minute",
    "H3_MOST_OPEN": "100000",
    "H3_MOST_STREAMS": "10000",
}
OURS = ("H3_", "AWS_", "REDIS_")
HANDLE = re.compile(r"0x[0-9a-f]+")  # another one each time
START_LIMIT_S, END_LIMIT_S = 60.0, 15.0


@dataclass(frozen=True, slots=True)
class Service:
    """A running one."""

    host: str
    port: int
    pid: int
    log: Path

    def cpu_s(self) -> float:
        """Of the process so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def cpu_wait_s(self) -> float:
        """For which its main thread could have gone on, and others had the cores."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def rss_peak_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

    def accidents(self) -> list[str]:
        """Errors that nobody foresaw, by its log."""
        return [
            f"the service's log: {told}" for line in self.log.read_text().splitlines() if (told := find_error(line))
        ]


def find_error(line: str) -> str:
    """The last line of the traceback that a line of the log is or begins, if it does."""
    if not line.startswith("{"):
        return line if line.startswith("Traceback") else ""
    return HANDLE.sub("0x..", str(json.loads(line).get("exception", "")).strip().rpartition("\n")[2])


@contextmanager
def serving(folder: Path, redis_url: str, store_url: str) -> Iterator[Service]:
    """Return when it listens."""
    tokens, log_path = folder / "tokens", folder / "service.log"
    tokens.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*DIES_WITH_PARENT, sys.executable, "-m", "h3render", "serve", "--port", "0", "--tokens", str(tokens)],
            cwd=REPOSITORY,
            env=_environment(redis_url, store_url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        url = urlsplit(process.stdout.readline().strip())
        if url.port is None:
            raise RuntimeError(f"the service did not start:\n{log_path.read_text()}")
        _await_listening(str(url.hostname), url.port)
        yield Service(str(url.hostname), url.port, process.pid, log_path)
    finally:
        _end(process)


def _await_listening(host: str, port: int) -> None:
    """It tells its address when that is taken, a moment before it listens there."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"nobody listens at {host}:{port} after {START_LIMIT_S:.0f} s")
        time.sleep(0.05)


def _environment(redis_url: str, store_url: str) -> Mapping[str, str]:
    """Without what a person has set for a farm of theirs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | LIMITS | {"REDIS_URL": redis_url, "H3_STORE_URL": store_url, "H3_LOG_FORMAT": "json"}


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_LIMIT_S)
    process.kill()
    process.wait()
    process.stdout.close()
