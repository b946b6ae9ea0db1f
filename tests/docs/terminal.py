"""Types the commands of a console block, and compares what they print with what the block says they do."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_DRAWN = re.compile(r"[0-9a-f]{32}|[0-9]{13}-[0-9]+")  # ids of jobs and of events: others in each run
_PARTS = re.compile(rf"(\.\.\.|{_DRAWN.pattern})")


class Terminal:
    """In a block's output `...` stands for anything. An id stands for the one that is printed in its place."""

    def __init__(self, folder: Path, environment: Mapping[str, str], replaced: Mapping[str, str] | None = None) -> None:
        """replaced  words of commands, like a port"""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._folder = folder
        self._environment = os.environ | {"PATH": path} | environment
        self._replaced = dict(replaced or {})
        self._ids: dict[str, str] = {}  # of the page, as they are here

    def run(self, block: str) -> None:
        """Fails at the first command that prints something else."""
        for command, printed in read_commands(block):
            real = self._type(command)
            match = re.fullmatch(self._pattern(printed), real, re.DOTALL)
            assert match, f"$ {command}\nprints\n{real}\nand the page says\n{printed}"
            self._ids |= {
                name.removeprefix("id_").replace("_", "-"): drawn for name, drawn in match.groupdict().items()
            }

    def _type(self, command: str) -> str:
        for told, real in (self._ids | self._replaced).items():
            command = command.replace(told, real)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.strip("\n")

    def _pattern(self, printed: str) -> str:
        seen: set[str] = set()
        return "".join(self._pattern_of(part, seen) for part in _PARTS.split(printed))

    def _pattern_of(self, part: str, seen: set[str]) -> str:
        if part == "...":
            return ".*?"
        if not _DRAWN.fullmatch(part) or part in self._ids:
            return re.escape(self._ids.get(part, part))
        name = "id_" + part.replace("-", "_")
        if part in seen:
            return f"(?P={name})"
        seen.add(part)
        return f"(?P<{name}>{_DRAWN.pattern})"


def read_commands(block: str) -> Iterator[tuple[str, str]]:
    """Each with what it prints."""
    for told in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = told.partition("\n")
        yield command, printed.strip("\n")
