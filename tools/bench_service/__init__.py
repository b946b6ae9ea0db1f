"""Loads the HTTP service, restarts its Redis, and checks every answer: `python tools/bench_service --help`."""
