"""The commands of docs/operations.md, as whoever starts a machine types them: tests of a worker take them from here."""

import shlex
from pathlib import Path

from tests.docs.pages import take

MODEL, PORT = "/models/MiniMax-H3", "9464"
_COMMANDS = [shlex.split(line, comments=True) for line in take("operations.md", "start").splitlines()]
_PROGRAMS = {words[0] for words in _COMMANDS}
assert {"h3render"} == _PROGRAMS

Words = list[str]


def typed(number: int, model: Path, port: int | None = None) -> Words:
    """The words of one of the commands, with a model that is there and a free port."""
    real = {MODEL: str(model), PORT: str(port)}
    return [real.get(word, word) for word in _COMMANDS[number][1:]]
