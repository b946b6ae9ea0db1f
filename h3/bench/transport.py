"""Measures what ranks exchange in one block, and the attention between, without any weights."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from h3.attention import AttentionName
from h3.bench.fleet import running
from h3.bench.report import VERSION
from h3.bench.transport_ranks import HEAD_DIM, HEADS, WIDTH, Measured, Timed, TransportRunner
from h3.bench.turns import Tell
from h3.sequence import Geometry, Layout

SHAPES = [Geometry(864, 480, 141), Geometry(1344, 768, 124), Geometry(1344, 768, 243)]
SHAPES_ON_CPU = [Geometry(96, 64, 22), Geometry(96, 64, 39)]
MEMBER = "sequences"  # of a report
_PLAIN_WIDTH = 160  # where there is no terminal to ask


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


def measure(
    world_size: int, backend: AttentionName, layouts: Sequence[Layout], *, on_gpus: bool, tell: Tell
) -> Iterator[Exchange]:
    """One after the other in one fleet. Raises ConfigError, RanksFailed."""
    with running(TransportRunner, world_size, on_gpus=on_gpus) as fleet:
        for layout in layouts:
            tell(f"{show_shape(layout)}: {layout.tokens} tokens")
            ranks = fleet.hear(Measured, tokens=layout.tokens, backend=backend)
            yield Exchange(layout, sorted(ranks, key=lambda measured: measured.rank))


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
    Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH).print(table)


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
