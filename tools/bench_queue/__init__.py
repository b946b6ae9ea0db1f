"""Measures what the farm adds to a render (queue, lease, events, uploads): `python tools/bench_queue --help`."""
