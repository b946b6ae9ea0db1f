"""Commands as a person calls them, in this process: for the many inputs of which one or two go through a real one."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog
import typer
from typer.testing import CliRunner, Result

OURS = ("H3_", "RUNPOD_", "REDIS_")


def call(app: typer.Typer, *arguments: object, **environment: str | None) -> Result:
    """What `app` answers, if it ends as a command does: with an exit code. A name whose value is None is not set."""
    unset = dict.fromkeys(name for name in os.environ if name.startswith(OURS))
    with _own_logs():
        done = CliRunner().invoke(app, list(map(str, arguments)), env=unset | environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.stderr
    return done


@contextmanager
def _own_logs() -> Iterator[None]:
    """A command takes the logs of its process in hand; those of this one stay as they are."""

    def ignore(*_: object, **__: object) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", ignore)
        patch.setattr(logging, "basicConfig", ignore)
        yield
