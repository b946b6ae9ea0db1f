"""Runs the commands for pods as child processes, in an environment that knows no RunPod but the test's."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ("tools/runpod_api.py",)


def make_environment(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """This process's, without what it says of pods and queues; the ledger is in the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("H3_", "RUNPOD_", "REDIS_"))}
    return kept | {"H3_PODS_LEDGER": str(folder / "pods.jsonl")} | variables


def run_command(
    arguments: Iterable[object],
    environment: Mapping[str, str | None],
    secrets: Iterable[str],
    command: Iterable[str] = SCRIPT,
) -> subprocess.CompletedProcess[str]:
    """None of the secrets is in anything that it prints, and no traceback."""
    done = subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        env={name: value for name, value in environment.items() if value is not None},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not any(secret in done.stdout + done.stderr for secret in secrets)
    assert "Traceback" not in done.stderr
    return done


def find_processes(text: str, file: str) -> list[int]:
    """In whose `cmdline` or `environ` this is; those that are not ours to read are left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text.encode() in (folder / file).read_bytes():
                found.append(int(folder.name))
    return found
