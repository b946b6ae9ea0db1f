"""Tells how a fleet has loaded: a table for people, and everything for a file."""

from dataclasses import asdict

from h3.bench.load import Outcome, Start, Subject
from h3.bench.report import VERSION, open_console, open_table
from h3.machine import describe_machine


def describe_load(subject: Subject, outcome: Outcome) -> dict[str, object]:
    """Everything, for a file."""
    return {
        "version": VERSION,
        "machine": describe_machine(on_gpus=subject.on_gpus),
        "model": str(subject.path),
        "loads": "the whole model" if subject.is_whole else "the denoiser",
        "precision": outcome.precision,
        "mode": subject.mode,
        "world_size": subject.world_size,
        "page_cache": asdict(outcome.warming),
        "starts": [
            describe_start(start) | {"shutdown_s": shutdown_s}
            for start, shutdown_s in zip(outcome.starts, outcome.shutdown_s, strict=True)
        ],
    }


def describe_start(start: Start) -> dict[str, object]:
    """With what every rank says."""
    ranks = [
        {
            "rank": each.rank,
            "setup_s": each.ready_at - each.setup_at,
            "asked_bytes": each.read.asked if each.read else None,
            "read_bytes": each.read.from_disk if each.read else None,
            "weight_bytes": each.weight_bytes,
            "peak_bytes": each.peak_bytes,
        }
        for each in start.ranks
    ]
    return {"seconds": start.seconds, "phases": dict(start.phases), "read_bytes": start.from_disk_bytes, "ranks": ranks}


def print_load(subject: Subject, outcome: Outcome) -> None:
    """To stdout."""
    console, many = open_console(), f"{subject.world_size} rank{'s' if subject.world_size > 1 else ''}"
    loaded = "the whole model" if subject.is_whole else "the denoiser"
    headings = [f"start {number}" for number in range(1, len(outcome.starts) + 1)]
    title = f"A start of {many} with {loaded}, {outcome.precision}, {subject.mode}"
    table = open_table(title, "", *[text for heading in headings for text in (heading, "share")])
    for phase in outcome.starts[0].phases:
        table.add_row(phase, *_cells([(start.phases[phase], start.seconds) for start in outcome.starts]))
    table.add_section()
    table.add_row("until all are ready, in all", *_cells([(start.seconds, start.seconds) for start in outcome.starts]))
    table.add_row("shutdown afterwards", *[cell for seconds in outcome.shutdown_s for cell in (f"{seconds:.2f} s", "")])
    console.print(table)
    console.print(f"\nin the page cache: {tell_bytes(outcome.warming.size_bytes)}, read there before the first start")
    for heading, start in zip(headings, outcome.starts, strict=True):
        for rank in describe_ranks(start):
            console.print(f"{heading}, {rank}")


def _cells(times: list[tuple[float, float]]) -> list[str]:
    return [cell for seconds, whole in times for cell in (f"{seconds:.2f} s", f"{seconds / whole:.1%}")]


def describe_ranks(start: Start) -> list[str]:
    """A line each: what was read, and what it holds now."""
    return [
        f"rank {each.rank}: read {tell_bytes(each.read.asked if each.read else None)}, "
        f"{tell_bytes(each.read.from_disk if each.read else None)} of the disk; "
        f"holds {tell_bytes(each.weight_bytes)} of the denoiser"
        for each in start.ranks
    ]


def tell_bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"
