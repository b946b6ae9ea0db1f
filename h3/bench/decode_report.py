"""Tells what decoding took."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from h3.bench.decode import Contest, Result
from h3.bench.report import VERSION, open_console, open_table
from h3.machine import describe_machine


def describe(contest: Contest, results: Sequence[Result]) -> dict[str, object]:
    """Everything, for a file."""
    return {
        "version": VERSION,
        "machine": describe_machine(on_gpus=contest.on_gpus),
        "model": str(contest.model or "random weights of the published size"),
        "world_size": contest.world_size,
        "results": [
            {
                "name": result.name,
                **asdict(result.geometry),
                "seconds": result.seconds,
                "turns": [asdict(turn) for turn in result.turns],
            }
            for result in results
        ],
    }


def print_outcome(results: Sequence[Result]) -> None:
    """To stdout."""
    table = open_table(
        "Decoding, with its encoding", "", "", "first segment", "all", "of it decoding", "clip", "frames/s", "peak"
    )
    for result in results:
        first, decoding, peak = (
            statistics.median(figures)
            for figures in zip(*((t.first_segment_s, t.decoding_s, t.peak_bytes) for t in result.turns), strict=True)
        )
        geometry = result.geometry
        table.add_row(
            f"{geometry.width}x{geometry.height}, {geometry.frames} frames",
            result.name,
            f"{first:.2f} s",
            f"{result.seconds:.2f} s",
            f"{decoding:.2f} s",
            f"{decoding / geometry.clips:.3f} s",
            f"{geometry.frames / result.seconds:.1f}",
            f"{peak / 1e9:.1f} GB" if peak else "-",
        )
    open_console().print(table)
