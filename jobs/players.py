"""Programs that play a video or a stream from a file, and one of them at work. Knows no jobs."""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import SettingsInvalid

END_TIMEOUT_S = 5.0
_STDERR = 2  # where a player may write what it likes: our stdout is for results


@dataclass(frozen=True, slots=True)
class Program:
    """A player as it is called; the file comes last."""

    command: tuple[str, ...]
    stream_options: tuple[str, ...] = ()  # for a playlist that grows

    @property
    def name(self) -> str:
        return Path(self.command[0]).name


# FFmpeg's reader of playlists begins three segments before the end, and gives up after some reloads without news.
_PATIENCE = {"live_start_index": 0, "max_reload": 1_000_000, "m3u8_hold_counters": 1_000_000}
PROGRAMS = (
    Program(("mpv",), ("--demuxer-lavf-o=" + ",".join(f"{name}={value}" for name, value in _PATIENCE.items()),)),
    Program(
        ("ffplay", "-loglevel", "warning", "-autoexit"),
        tuple(word for name, value in _PATIENCE.items() for word in (f"-{name}", str(value))),
    ),
    Program(("vlc", "--play-and-exit")),
)


def find_program(command: str | None) -> Program:
    """The one that is named, with options, or the first that is installed. Raises SettingsInvalid, with the remedy."""
    known = {program.name: program for program in PROGRAMS}
    if command is None:
        found = next((program for program in PROGRAMS if shutil.which(program.name)), None)
        if found is None:
            raise SettingsInvalid(
                f"no player is found: install one of {', '.join(known)}, or name another with --player; "
                "or copy the video with `h3render fetch`"
            )
        return found
    words = _split(command)
    if shutil.which(words[0]) is None:
        raise SettingsInvalid(
            f"--player {words[0]!a} cannot be run here: name one of {', '.join(known)}, or the path of another; "
            "or copy the video with `h3render fetch`"
        )
    program = Program(tuple(words))
    usual = known.get(program.name)
    return program if usual is None else Program((*program.command, *usual.command[1:]), usual.stream_options)


def _split(command: str) -> Sequence[str]:
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise SettingsInvalid(f"--player {command!a}: {exc}: write a command as for a shell") from exc
    if not words:
        raise SettingsInvalid("--player is empty: name a program, or leave it out")
    return words


class PlayerEnded(Exception):
    """Whoever watches has seen enough."""


class Player:
    """At most one run of a player, which ends with the block."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    @property
    def is_started(self) -> bool:
        return self._process is not None

    def start(self, path: Path, *, grows: bool) -> None:
        """Play a file; one that grows is a playlist."""
        command = [*self._program.command, *(self._program.stream_options if grows else ()), str(path)]
        self._process = subprocess.Popen(command, stdout=_STDERR)  # noqa: S603

    def check(self) -> None:
        """Raises PlayerEnded once it has."""
        if self._process is not None and self._process.poll() is not None:
            raise PlayerEnded

    def wait(self) -> int:
        """Its exit code; 0 if it was never started."""
        return 0 if self._process is None else self._process.wait()

    def _end(self) -> None:
        if self._process is None:
            return
        for ask in (self._process.terminate, self._process.kill):
            if self._process.poll() is None:
                ask()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_TIMEOUT_S)
