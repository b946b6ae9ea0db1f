"""Measures what ranks of this machine exchange in one block, and the attention between, without any weights.

tools/run_ulysses_benchmark.sh
tools/run_ulysses_benchmark.sh 2 sdpa --shape 864x480x141
"""

import sys
from pathlib import Path

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that is run sees only its own folder

from h3.attention import AttentionName, require_installed
from h3.bench.nccl_log import logging_nccl
from h3.bench.transport import MEMBER, SHAPES, SHAPES_ON_CPU, describe, measure, print_table
from h3.bench.transport_ranks import HEADS
from h3.cli import plain_errors
from h3.machine import describe_machine
from h3.partition import split_evenly
from h3.sequence import Layout
from tools.launch.arguments import TEXT_TOKENS, Backend, Benchmark, Shapes, World
from tools.launch.benchmark_file import read_results, require_writable, write_json


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
    with plain_errors(), logging_nccl() as read_transports:
        exchanges = list(measure(world, backend, layouts, on_gpus=on_gpus, tell=tell))
        machine = {**describe_machine(on_gpus=on_gpus), "nccl_transport": read_transports()}
    print_table(exchanges)
    if benchmark:
        with plain_errors():
            write_json(benchmark, describe(exchanges, machine))
    raise typer.Exit(0 if all(exchange.is_identity for exchange in exchanges) else 1)


def tell(text: str) -> None:
    """Progress."""
    typer.echo(text, err=True)


if __name__ == "__main__":
    typer.run(main)
