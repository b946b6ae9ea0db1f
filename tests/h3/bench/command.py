"""Runs `h3render bench` in this process."""

from typer.testing import CliRunner, Result

import h3render


def run(*arguments: object, code: int = 0) -> Result:
    """What it says, if it ends with this exit code."""
    done = CliRunner().invoke(h3render.app, ["bench", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done
