"""Measures the multi-GPU controller on this machine against its goals: `python tools/bench_controller --help`."""
