"""Measures what ranks of this machine exchange in one block, and the attention between, without any weights.

tools/run_ulysses_benchmark.sh
tools/run_ulysses_benchmark.sh 2 sdpa --shape 864x480x141
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that is run sees only its own folder

from h3.attention import AttentionName, require_installed
from h3.cli import plain_errors
from h3.machine import describe_machine
from h3.partition import split_evenly
from h3.sequence import Geometry, Layout
from tools.launch.arguments import SHAPE, TEXT_TOKENS, Backend, Benchmark, Shapes, World
from tools.launch.benchmark_file import VERSION, read_results, require_writable, write_json
from tools.launch.nccl_log import logging_nccl
from tools.launch.transport_runner import HEAD_DIM, HEADS, WIDTH, Measured, Timed, TransportRunner
from worker.mgpu import AsymmetricRunnerError, FatalFleetError, MGPUController

SHAPES = [SHAPE, Geometry(1344, 768, 124), Geometry(1344, 768, 243)]
SHAPES_ON_CPU = [Geometry(96, 64, 22), Geometry(96, 64, 39)]
MEMBER = "sequences"
PLAIN_WIDTH = 160  # where there is no terminal to ask


@dataclass(frozen=True, slots=True)
class Exchange:
    """What all ranks measured on one sequence."""

    layout: Layout
    ranks: list[Measured]  # in rank order

    @property
    def is_identity(self) -> bool:
        return all(rank.is_identity for rank in self.ranks)

    @property
    def operations(self) -> dict[str, list[Timed]]:
        """By rank."""
        return {each[0].operation: list(each) for each in zip(*(rank.timed for rank in self.ranks), strict=True)}


def main(
    world: World,
    backend: Backend = AttentionName.AUTO,
    shape: Shapes = None,
    benchmark: Benchmark = None,
) -> None:
    """Measure what ranks of this machine exchange in a block, without weights. Exit code 1 if bits were changed."""
    on_gpus = torch.cuda.is_available()
    layouts = [Layout(each, TEXT_TOKENS) for each in shape or (SHAPES if on_gpus else SHAPES_ON_CPU)]
    with plain_errors():
        require_installed(backend, on_gpus=on_gpus)
        split_evenly(HEADS, world, what="attention heads")
        if benchmark:
            read_results(benchmark, MEMBER)
            require_writable(benchmark)
    with logging_nccl() as read_transports, ending_with_ranks():
        exchanges = list(measure(world, backend, layouts, on_gpus=on_gpus))
        machine = {**describe_machine(on_gpus=on_gpus), "nccl_transport": read_transports()}
    print_table(exchanges)
    if benchmark:
        with plain_errors():
            write_json(benchmark, describe(exchanges, machine))
    raise typer.Exit(0 if all(exchange.is_identity for exchange in exchanges) else 1)


def measure(world_size: int, backend: AttentionName, layouts: Sequence[Layout], *, on_gpus: bool) -> Iterator[Exchange]:
    """One after the other in one fleet."""
    between: Literal["nccl", "gloo"] = "nccl" if on_gpus else "gloo"
    with MGPUController(TransportRunner, num_gpus=world_size, backend=between, outputs="cpu") as controller:
        controller.start()
        for layout in layouts:
            typer.echo(f"{show_shape(layout)}: {layout.tokens} tokens", err=True)
            ranks = controller.stream(tokens=layout.tokens, backend=backend)
            yield Exchange(layout, sorted(ranks, key=lambda measured: measured.rank))


@contextmanager
def ending_with_ranks() -> Iterator[None]:
    """What ends the ranks ends the command, with 1 and without a traceback of its own."""
    try:
        yield
    except (FatalFleetError, AsymmetricRunnerError) as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(1) from exc


def print_table(exchanges: Sequence[Exchange]) -> None:
    """Of the ranks that took longest, and sent most."""
    table = Table("shape", "tokens", "operation", "ms", "MB sent by a rank", "GB/s of a rank", "identity")
    for exchange in exchanges:
        for operation, timed in exchange.operations.items():
            seconds, sent = max(rank.seconds for rank in timed), max(rank.sent_bytes for rank in timed)
            table.add_row(
                show_shape(exchange.layout),
                str(exchange.layout.tokens),
                operation,
                f"{seconds * 1e3:.3f}",
                f"{sent / 1e6:.1f}" if sent else "-",
                f"{sent / seconds / 1e9:.2f}" if sent else "-",
                show_identity(exchange) if operation in ("scatter_heads", "gather_heads") else "",
            )
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


def show_shape(layout: Layout) -> str:
    sizes = layout.geometry
    return f"{sizes.width}x{sizes.height}x{sizes.frames}"


def show_identity(exchange: Exchange) -> str:
    return "yes" if exchange.is_identity else "NO"


def describe(exchanges: Sequence[Exchange], machine: Mapping[str, object]) -> dict[str, object]:
    """The report."""
    return {
        "version": VERSION,
        "kind": "transport",
        "world_size": len(exchanges[0].ranks),
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "width": WIDTH,
        MEMBER: [describe_exchange(exchange) for exchange in exchanges],
        "machine": machine,
    }


def describe_exchange(exchange: Exchange) -> dict[str, object]:
    """Lists are by rank."""
    return {
        **asdict(exchange.layout.geometry),
        "tokens": exchange.layout.tokens,
        "attention_backend": exchange.ranks[0].attention_backend,
        "is_identity": exchange.is_identity,
        "operations": {
            operation: {
                "seconds": [rank.seconds for rank in timed],
                "sent_bytes": [rank.sent_bytes for rank in timed],
                "bytes_per_s": [rank.sent_bytes / rank.seconds for rank in timed],
            }
            for operation, timed in exchange.operations.items()
        },
    }


if __name__ == "__main__":
    typer.run(main)
