#!/usr/bin/env bash
# The Python that this checkout's tools run in: that of .venv, or python3 where there is none.
set -euo pipefail
python=$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/python
[[ -x $python ]] || python=python3
if ! "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("torch") and u.find_spec("typer")))' 2>/dev/null; then
    echo "$python has no torch or no typer: run \`make install\` first, which makes .venv" >&2
    exit 2
fi
exec "$python" "$@"
