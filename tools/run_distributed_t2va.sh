#!/usr/bin/env bash
# Denoises on ranks of this machine: tools/run_distributed_t2va.sh MODE [WORLD] [BACKEND] [options], or --help
set -euo pipefail
tools=$(dirname "${BASH_SOURCE[0]}")
exec "$tools/python.sh" "$tools/distributed_t2va.py" "$@"
