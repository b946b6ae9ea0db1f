"""Tells what was measured: tables for people, and a file with everything that is needed to judge it."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from h3.bench.step import Contest, Outcome, Result
from h3.bench.work import Part, show_tera
from h3.errors import ConfigError
from h3.machine import describe_machine

VERSION = 1
_WIDTH = 300  # more than a table has: a pipe gets whole lines


def require_file(path: Path | None, suffix: str, flag: str) -> None:
    """Refuse a place that nothing can be written to, before the work. Raises ConfigError."""
    if path is None:
        return
    if path.suffix.lower() != suffix:
        raise ConfigError(f"{flag} {path}: let its name end with {suffix}")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: {path.parent} is no folder: make it first")


def write(path: Path, content: object) -> None:
    """As JSON."""
    path.write_text(json.dumps(content, indent=1) + "\n")


def describe(contest: Contest, outcome: Outcome) -> dict[str, object]:
    """Everything, for a file."""
    return {
        "version": VERSION,
        "machine": describe_machine(on_gpus=contest.on_gpus),
        "model": str(contest.model),
        "mode": str(contest.mode),
        "head_groups": contest.head_groups,
        "world_size": contest.world_size,
        "ceilings": asdict(outcome.ceilings),
        "results": [_describe_result(result, outcome) for result in outcome.results],
    }


def _describe_result(result: Result, outcome: Outcome) -> dict[str, object]:
    geometry = result.layout.geometry
    told: dict[str, object] = {
        "name": result.name,
        **asdict(geometry),
        "tokens": result.layout.tokens,
        "text_tokens": result.layout.text_tokens,
        "operations": outcome.operations[geometry],
        "turns": [asdict(turn) for turn in result.turns],
    }
    if result.refused:
        return told | {"refused": result.refused}
    return told | {
        "step_s": result.step_s,
        "operations_per_s": outcome.operations[geometry] / result.step_s,
        "parts": {part: asdict(time) for part, time in result.parts.items()},
    }


def print_outcome(outcome: Outcome) -> None:
    """To stdout: who took how long, then where our time went."""
    console = open_console()
    console.print(_draw_steps(outcome))
    for result in outcome.results:
        if result.parts:
            console.print()
            console.print(_draw_parts(result))
    ceilings = outcome.ceilings
    fp8 = f", {show_tera(ceilings.fp8_per_s)}FLOP/s in FP8" if ceilings.fp8_per_s else ""
    console.print(
        f"\nfloors: a product at {show_tera(ceilings.bf16_per_s)}FLOP/s{fp8}, a copy at "
        f"{show_tera(ceilings.bytes_per_s)}B/s, the best that this device did in short bursts"
    )


def open_console() -> Console:
    """For tables on stdout."""
    return Console(width=_WIDTH, highlight=False, markup=False, emoji=False)


def open_table(title: str, *headings: str) -> Table:
    """An empty one; all but the first column, and the names of attention, are numbers."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number and heading != "attention" else "left")
    return table


def _draw_steps(outcome: Outcome) -> Table:
    table = open_table(
        "A denoise step", "", "attention", "step", "spread", "TFLOP/s", "best peer takes", "peak", "weights"
    )
    for geometry in outcome.operations:
        results = outcome.at(geometry)
        layout = results[0].layout
        table.add_section()
        table.add_row(f"{geometry.width}x{geometry.height}, {geometry.frames} frames, {layout.tokens:,} tokens")
        peers = [result.step_s for result in results if not result.parts and result.turns]
        for result in results:
            table.add_row(*_step_row(result, outcome.operations[geometry], min(peers, default=None)))
    return table


def _step_row(result: Result, operations: float, best_peer_s: float | None) -> Iterator[str]:
    yield f"  {result.name}"
    if not result.turns:
        yield result.refused
        return
    turn, seconds = result.turns[0], [each for turn in result.turns for each in turn.step_s]
    yield turn.attention
    yield f"{result.step_s:.3f} s"
    yield f"{(max(seconds) - min(seconds)) / result.step_s:.1%}"
    yield f"{operations / result.step_s / 1e12:.3g}"
    yield f"{best_peer_s / result.step_s:.2f} x" if best_peer_s and result.parts else "-"
    yield f"{turn.peak_bytes / 1e9:.1f} GB" if turn.peak_bytes else "-"
    yield f"{turn.weight_bytes / 1e9:.1f} GB"


def _draw_parts(result: Result) -> Table:
    geometry = result.layout.geometry
    table = open_table(
        f"{result.name}, {geometry.width}x{geometry.height}, {geometry.frames} frames: the parts of a step on a rank",
        "",
        "time",
        "share",
        "floor",
        "gap",
        "TFLOP/s",
        "TB/s",
    )
    total = sum(time.seconds for time in result.parts.values())
    for part, time in result.parts.items():
        table.add_row(
            part,
            f"{1000 * time.seconds:.1f} ms",
            f"{time.seconds / total:.1%}",
            f"{1000 * time.floor_s:.1f} ms",
            f"{1000 * (time.seconds - time.floor_s):.1f} ms",
            f"{time.operations / time.seconds / 1e12:.3g}" if time.operations and part is not Part.REST else "-",
            f"{time.bytes / time.seconds / 1e12:.2f}" if time.bytes else "-",
        )
    floor = sum(time.floor_s for time in result.parts.values())
    table.add_section()
    taken, least, gap = (f"{1000 * seconds:.1f} ms" for seconds in (total, floor, total - floor))
    table.add_row("all", taken, "100.0%", least, gap)
    return table
