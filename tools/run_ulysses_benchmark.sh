#!/usr/bin/env bash
# Measures what ranks exchange, without weights: tools/run_ulysses_benchmark.sh [WORLD] [BACKEND] [options], or --help
set -euo pipefail
tools=$(dirname "${BASH_SOURCE[0]}")
exec "$tools/python.sh" "$tools/ulysses_benchmark.py" "$@"
