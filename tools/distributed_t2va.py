"""Denoises from text on ranks of this machine, in one mode, and reports time, memory and transport.

    tools/run_distributed_t2va.sh ulysses
    tools/run_distributed_t2va.sh tensor 2 sdpa --shape 1344x768x124 --shape 1344x768x243

docs/distributed.md says how to choose, and what a report holds.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that is run sees only its own folder

from worker.collector import uncollected_imports

with uncollected_imports():
    from h3.attention import AttentionName
    from h3.bench.nccl_log import logging_nccl
    from h3.cli import pick_device, plain_errors
    from h3.denoise_fleet import DenoiseRequest, Outcome, Ranks, StepTaken, check, open_source, running_ranks
    from h3.errors import ConfigError
    from h3.latents_file import write_latents
    from h3.machine import describe_machine
    from h3.on_files import describe
    from h3.parallel.mode import Mode
    from h3.precision import Precision
    from h3.sequence import Geometry
    from h3.untrained import H3, Untrained, with_curve
    from tools.launch.arguments import (
        SEED,
        SHAPE,
        STEPS,
        TEXT_TOKENS,
        Backend,
        Benchmark,
        Shapes,
        World,
    )
    from tools.launch.benchmark_file import Report, keep_run, parse_run, read_runs, require_writable, write_json
    from tools.launch.text_states import find_text_files, write_prompt_states, write_random_states

OUTPUT = Path("build/distributed")
PROMPT = "A red kite rises over the dunes at dawn while waves break below; wind, gulls and surf are heard."
UNTRAINED = Untrained(with_curve(H3))


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """Where results are kept: a folder for each run, and the benchmark file."""

    folder: Path
    benchmark: Path | None
    saves_latents: bool

    def keep(self, report: Report, outcome: Outcome, geometry: Geometry) -> Path:
        """Returns the report's path."""
        folder = self.folder / name_run(report)
        folder.mkdir(parents=True, exist_ok=True)
        latents = folder / "latents.safetensors"
        latents.unlink(missing_ok=True)  # an earlier run's, which would lie beside this one's report
        if self.saves_latents:
            write_latents(latents, outcome.latents, geometry)
        write_json(folder / "report.json", report)
        if self.benchmark:
            keep_run(self.benchmark, report)
        return folder / "report.json"


def name_run(report: Report) -> str:
    run = parse_run(report)
    known = run.provenance
    return f"{known.mode}-{known.world_size}-{known.precision}-{run.width}x{run.height}x{run.frames}"


def main(
    mode: Annotated[Mode, typer.Argument(help="How ranks share the render.")],
    world: World,
    backend: Backend = AttentionName.AUTO,
    shape: Shapes = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Model evaluations.")] = STEPS,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the noise.")] = SEED,
    precision: Annotated[
        Precision | None, typer.Option(show_default="as stored; bf16 without a checkpoint", help="Of the weights.")
    ] = None,
    text_tokens: Annotated[int, typer.Option(min=1, help="Random ones, without a text encoder.")] = TEXT_TOKENS,
    prompt: Annotated[str | None, typer.Option(show_default="a sentence", help="For the text encoder.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            envvar="H3_MODEL_PATH", show_default="random weights", help="A denoiser's folder or file, or a root."
        ),
    ] = None,
    text_encoder: Annotated[
        Path | None,
        typer.Option(
            envvar="H3_TEXT_ENCODER_PATH", show_default="random states", help="Its folder or file, or a root."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(envvar="H3_DISTRIBUTED_OUTPUT", help="A folder for each run's files.")] = OUTPUT,
    benchmark: Benchmark = None,
    save_latents: Annotated[bool, typer.Option(envvar="H3_SAVE_LATENTS", help="Keep the latents, too.")] = True,
) -> None:
    """Denoise on ranks of this machine, and print the path of each shape's report."""
    ranks = Ranks(world, pick_device(None).type, mode, precision, backend)
    with plain_errors():
        if benchmark:
            read_runs(benchmark)
            require_writable(benchmark)
        source = choose_model(model, ranks.device)
        width = open_source(source)[0].config.text_dim
        out.mkdir(parents=True, exist_ok=True)
        states = write_states(out, prompt, text_encoder, model, text_tokens, width)
        requests = [
            DenoiseRequest(states, None, each, steps, seed, meters_transport=world > 1) for each in shape or [SHAPE]
        ]
        for path in denoise_all(source, ranks, requests, OutputFolder(out, benchmark, save_latents)):
            typer.echo(path)


def choose_model(path: Path | None, device: str) -> Path | Untrained:
    """Random weights where there is no checkpoint. Raises ConfigError where these would take hours."""
    if path is not None:
        return path
    if device == "cpu":
        raise ConfigError(
            "without a GPU, random weights of the published size are too large: make a small checkpoint by "
            "`h3render checkpoint tiny DIR` and set H3_MODEL_PATH=DIR"
        )
    typer.echo(f"H3_MODEL_PATH is not set: {UNTRAINED}, of the published size, pruned", err=True)
    return UNTRAINED


def write_states(
    folder: Path, prompt: str | None, encoder: Path | None, model: Path | None, tokens: int, width: int
) -> Path:
    """Raises CheckpointError, ConfigError."""
    if encoder is not None:
        return write_prompt_states(folder, prompt or PROMPT, find_text_files(encoder, model), pick_device(None))
    if prompt is not None:
        raise ConfigError("--prompt takes a text encoder: set H3_TEXT_ENCODER_PATH")
    typer.echo(f"H3_TEXT_ENCODER_PATH is not set: random text states, {tokens} tokens", err=True)
    return write_random_states(folder, tokens, width)


def denoise_all(
    model: Path | Untrained, ranks: Ranks, requests: Sequence[DenoiseRequest], output: OutputFolder
) -> Iterator[Path]:
    """One after the other in one fleet; gives each report's path."""
    tokens = [check(model, ranks, request) for request in requests]
    with logging_nccl() as read_transports, running_ranks(model, ranks) as fleet:
        machine = describe_machine(on_gpus=ranks.device == "cuda")
        for request, count in zip(requests, tokens, strict=True):
            outcome = fleet.run(request, tell_steps(request))
            report = describe(model, request, count, outcome)
            report["machine"] = {**machine, "nccl_transport": read_transports()}
            yield output.keep(report, outcome, request.geometry)


def tell_steps(request: DenoiseRequest) -> Callable[[StepTaken], None]:
    """To stderr, as they are taken."""
    sizes = request.geometry
    shape = f"{sizes.width}x{sizes.height}, {sizes.frames} frames"

    def tell(taken: StepTaken) -> None:
        typer.echo(f"{shape}: step {taken.step}/{request.steps} {taken.seconds:.3f} s", err=True)

    return tell


if __name__ == "__main__":
    typer.run(main)
