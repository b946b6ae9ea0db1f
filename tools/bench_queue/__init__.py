"""Measures what the farm adds to a render, and how fast it answers its clients: `python tools/bench_queue --help`."""
