#!/usr/bin/env bash
# The Python that this checkout's tools run in: that of .venv, or python3 where there is none.
set -euo pipefail
python=$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/python
[[ -x $python ]] || python=python3
exec "$python" "$@"
