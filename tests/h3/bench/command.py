"""`h3render bench` as a person calls it, in this process."""

import json

from typer.testing import CliRunner

import h3render


def bench(*arguments, code=0):
    """Returns what it says: on stdout, or what is wrong."""
    done = CliRunner().invoke(h3render.app, ["bench", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.stdout if code == 0 else done.stderr


def read_json(path):
    return json.loads(path.read_text())
