"""`h3render bench` as a person calls it, in this process."""

import json

from typer.testing import CliRunner

import h3render


def run(*arguments, code=0):
    """What it says, if it ends with this exit code."""
    done = CliRunner().invoke(h3render.app, ["bench", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def bench(*arguments, code=0):
    """The same, of it the answer: on stdout, or what is wrong."""
    done = run(*arguments, code=code)
    return done.stdout if code == 0 else done.stderr


def read_json(path):
    return json.loads(path.read_text())
