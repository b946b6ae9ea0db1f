"""`h3render bench`: what a render is made of, measured on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3.cli import Device, choose, pick_device, plain_errors
from h3.errors import ConfigError, RanksFailed

if TYPE_CHECKING:
    from h3.attention import AttentionName
    from h3.precision import Precision
    from h3.sequence import Geometry

app = typer.Typer()
FOLDER = Path("build/bench")
LARGE = ["864x480x141", "1344x768x124"]

bench = typer.Typer(no_args_is_help=True, help="Measure what a render is made of on this machine.")
app.add_typer(bench, name="bench")

Model = Annotated[
    Path | None,
    typer.Option(help="Root of a checkpoint, or its denoiser (default: random weights of the published size)."),
]
Tiny = Annotated[bool, typer.Option("--tiny", help="Random weights of toy size: quick anywhere.")]
Layers = Annotated[int | None, typer.Option(min=1, help="Blocks of the random weights (default: all).")]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="WxHxF", help="Pixels, multiples of 32, and frames, 17n + 5, as 864x480x141; again for more."
    ),
]
Peer = Annotated[str | None, typer.Option(help="diffusers: measure it too, by turns with ours.")]
Rounds = Annotated[int, typer.Option(min=1, help="Of two turns each: A B, B A.")]
Folder = Annotated[Path, typer.Option(help="For random weights, once: 12.5 GB in nvfp4, 40 in bf16; other parts, 8.4.")]
Loaded = Annotated[
    str | None,
    typer.Option("--precision", help="nvfp4, bf16 or fp8 (default: as stored; random weights: nvfp4)."),
]
ModeFlag = Annotated[str, typer.Option(help="How ranks share a step: ulysses or tensor.")]
WorldSize = Annotated[int, typer.Option(min=1, help="Ranks; on a GPU machine, GPUs.")]
Report = Annotated[Path | None, typer.Option(help="A .json file to keep everything in.")]


@bench.command("step")
def step_command(
    model: Model = None,
    tiny: Tiny = False,
    layers: Layers = None,
    shape: Shapes = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="bf16, nvfp4 or fp8, and with @ an attention, as fp8@fa3; again for more.")
    ] = None,
    mode: ModeFlag = "ulysses",
    head_groups: Annotated[
        int,
        typer.Option(min=1, help="With ulysses: exchange so many groups of heads, each beside another's attention."),
    ] = 1,
    world_size: WorldSize = 1,
    peer: Peer = None,
    compiled: Annotated[bool, typer.Option(help="Measure the peer compiled, too, on GPUs.")] = True,
    steps: Annotated[int, typer.Option(min=1, help="Of a turn.")] = 3,
    rounds: Rounds = 1,
    report: Report = None,
    plot: Annotated[Path | None, typer.Option(help="A .png file to draw the roofline to.")] = None,
    device: Device = None,
) -> None:
    """Time a denoise step and its parts, beside their floors and beside a peer. AdaLN is in nobody's time."""
    with plain_errors():
        from h3.bench.model import choose_model
        from h3.bench.report import describe, print_outcome, require_file, write
        from h3.bench.step import Contest, Plan, measure
        from h3.parallel.mode import Mode

        require_peer(peer)
        require_file(report, ".json", "--report")
        require_file(plot, ".png", "--plot")
        if plot:
            from h3.bench.roofline import draw_roofline  # matplotlib comes with an extra of its own: before the work
        on_gpus = pick_device(device).type == "cuda"
        if peer and world_size > 1 and not on_gpus:
            raise ConfigError("--peer diffusers shares a step over GPUs only: take --world-size 1")
        source, config = choose_model(model, tiny=tiny, layers=layers)
        contest = Contest(
            source,
            config,
            read_entries(precision or ["bf16"]),
            choose(Mode, mode, "--mode"),
            head_groups,
            world_size,
            on_gpus,
            with_diffusers=peer is not None,
            compiles=compiled and on_gpus,
        )
        shapes = read_shapes(shape or (LARGE if on_gpus and not tiny else ["256x160x39"]))
        outcome = measure(contest, Plan(shapes, steps, rounds), _tell)
        print_outcome(outcome)
        if report:
            write(report, describe(contest, outcome))
        if plot:
            draw_roofline(outcome, plot)


@bench.command("decode")
def decode_command(
    model: Annotated[
        Path | None, typer.Option(help="Root of a checkpoint (default: random weights of the published size).")
    ] = None,
    tiny: Tiny = False,
    folder: Folder = FOLDER,
    shape: Shapes = None,
    world_size: WorldSize = 1,
    peer: Peer = None,
    rounds: Rounds = 1,
    report: Report = None,
    device: Device = None,
) -> None:
    """Time the video decoder, clip by clip and with the encoding beside it, and a peer's."""
    with plain_errors():
        from h3.bench.decode import Contest, measure
        from h3.bench.decode_report import describe, print_outcome
        from h3.bench.report import require_file, write
        from h3.bench.untrained_model import choose_root

        require_peer(peer)
        require_file(report, ".json", "--report")
        place = pick_device(device)
        on_gpus = place.type == "cuda"
        if tiny:
            model = choose_root(model, folder, place, _tell, tiny=True, layers=None, precision=None)
        shapes = read_shapes(shape or (LARGE if on_gpus and not tiny else ["96x64x39"]))
        contest = Contest(model, shapes, world_size, on_gpus, peer is not None, rounds)
        results = measure(contest, _tell)
        print_outcome(results)
        if report:
            write(report, describe(contest, results))


@bench.command("quality")
def quality_command(
    model: Model = None,
    tiny: Tiny = False,
    layers: Layers = None,
    shape: Annotated[str, typer.Option(metavar="WxHxF", help="Pixels and frames.")] = "480x288x56",
    steps: Annotated[int, typer.Option(min=2, max=1000, help="Model evaluations.")] = 12,
    precision: Annotated[list[str] | None, typer.Option(help="bf16, nvfp4 or fp8; again for more.")] = None,
    report: Report = None,
    device: Device = None,
) -> None:
    """Compare precisions and attention backends: their latents' distance from the model in fp32, and their times."""
    with plain_errors():
        from h3.bench.model import choose_model
        from h3.bench.quality import Contest, describe, measure, print_outcome
        from h3.bench.report import require_file, write
        from h3.precision import Precision
        from h3.sequence import Geometry

        require_file(report, ".json", "--report")
        source, _ = choose_model(model, tiny=tiny, layers=layers)
        precisions = tuple(Precision.parse(each) for each in precision or ["bf16"])
        contest = Contest(source, Geometry.parse(shape), steps, precisions, pick_device(device).type == "cuda")
        results = measure(contest, _tell)
        print_outcome(contest, results)
        if report:
            write(report, describe(contest, results))


@bench.command("transport")
def transport_command(
    world_size: WorldSize = 2,
    attention: Annotated[str, typer.Option(help="auto, or the name of one, to time between the exchanges.")] = "auto",
    shape: Shapes = None,
    report: Report = None,
    device: Device = None,
) -> None:
    """Time what ranks exchange in a block, without weights, and see that every bit arrives: else the exit code is 1."""
    with plain_errors():
        from h3.attention import AttentionName, require_installed
        from h3.bench.nccl_log import logging_nccl
        from h3.bench.report import require_file, write
        from h3.bench.transport import SHAPES, SHAPES_ON_CPU, describe, measure, print_table
        from h3.bench.transport_ranks import HEADS
        from h3.bench.turns import TEXT_TOKENS
        from h3.machine import describe_machine
        from h3.partition import split_evenly
        from h3.sequence import Layout

        require_file(report, ".json", "--report")
        on_gpus = pick_device(device).type == "cuda"
        name = choose(AttentionName, attention, "--attention")
        require_installed(name, on_gpus=on_gpus)
        split_evenly(HEADS, world_size, what="attention heads")
        shapes = read_shapes(shape) if shape else tuple(SHAPES if on_gpus else SHAPES_ON_CPU)
        layouts = [Layout(each, TEXT_TOKENS) for each in shapes]
        with logging_nccl() as read_transports:
            found = measure(world_size, name, layouts, on_gpus=on_gpus, tell=_tell)
            exchanges = list(found)
            machine = {**describe_machine(on_gpus=on_gpus), "nccl_transport": read_transports()}
        print_table(exchanges)
        if report:
            write(report, describe(exchanges, machine))
    raise typer.Exit(0 if all(exchange.is_identity for exchange in exchanges) else 1)


@bench.command("load")
def load_command(
    model: Annotated[
        Path | None,
        typer.Option(help="A checkpoint's root, for the whole model, or a denoiser (default: random weights)."),
    ] = None,
    tiny: Tiny = False,
    layers: Layers = None,
    precision: Loaded = None,
    folder: Folder = FOLDER,
    mode: ModeFlag = "ulysses",
    world_size: WorldSize = 1,
    report: Report = None,
    device: Device = None,
) -> None:
    """Time a start, from the first process to ranks that are ready, twice; and what each rank reads of the disk."""
    with plain_errors():
        from h3.bench.load import Subject, measure
        from h3.bench.load_report import describe_load, print_load
        from h3.bench.report import require_file, write
        from h3.bench.untrained_model import choose_files
        from h3.parallel.mode import Mode

        require_file(report, ".json", "--report")
        shared, place = choose(Mode, mode, "--mode"), pick_device(device)
        weights = read_precision(precision)
        path = choose_files(model, folder, place, _tell, tiny=tiny, layers=layers, precision=weights)
        subject = Subject(path, shared, world_size, on_gpus=place.type == "cuda", precision=weights)
        outcome = measure(subject, _tell)
        print_load(subject, outcome)
        if report:
            write(report, describe_load(subject, outcome))


@bench.command("end-to-end")
def end_to_end_command(
    model: Annotated[Path | None, typer.Option(help="Root of a checkpoint (default: random weights).")] = None,
    tiny: Tiny = False,
    layers: Layers = None,
    precision: Loaded = None,
    folder: Folder = FOLDER,
    shape: Annotated[
        str | None, typer.Option(metavar="WxHxF", help="Of the video (864x480x141; with --tiny, 96x64x39).")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Model evaluations.")] = 12,
    mode: ModeFlag = "ulysses",
    world_size: WorldSize = 1,
    report: Report = None,
    device: Device = None,
) -> None:
    """Time a render from prompt to mp4, by the worker's runner: from a cold start, and again. Exit 1 if they differ."""
    with plain_errors():
        from h3.bench.end_to_end import make_request, measure
        from h3.bench.end_to_end_report import describe_renders, print_renders
        from h3.bench.load import Subject
        from h3.bench.report import require_file, write
        from h3.bench.untrained_model import choose_root
        from h3.parallel.mode import Mode
        from h3.sequence import Geometry

        require_file(report, ".json", "--report")
        shared, place = choose(Mode, mode, "--mode"), pick_device(device)
        request = make_request(Geometry.parse(shape or ("96x64x39" if tiny else "864x480x141")), steps)
        weights = read_precision(precision)
        root = choose_root(model, folder, place, _tell, tiny=tiny, layers=layers, precision=weights)
        subject = Subject(root, shared, world_size, on_gpus=place.type == "cuda", precision=weights)
        outcome = measure(subject, request, _tell)
        print_renders(subject, outcome)
        if model is None:
            typer.echo("the pictures of random weights are noise, which takes longer to encode than a video does")
        if report:
            write(report, describe_renders(subject, outcome))
        if not outcome.is_reproduced:
            raise RanksFailed("two renders of one request have other latents: see the checksums in --report")


def read_shapes(texts: list[str]) -> "tuple[Geometry, ...]":
    """Raises ConfigError."""
    from h3.sequence import Geometry

    return tuple(Geometry.parse(text) for text in texts)


def require_peer(name: str | None) -> None:
    """Raises ConfigError for one that is not known."""
    if name not in (None, "diffusers"):
        raise ConfigError(f"--peer {name!r} is not diffusers")


def read_precision(text: str | None) -> "Precision | None":
    """Raises ConfigError."""
    from h3.precision import Precision

    return None if text is None else Precision.parse(text)


def read_entries(texts: list[str]) -> "tuple[tuple[Precision, AttentionName], ...]":
    """Precisions, each with the attention it is to run on: `auto` where none is named. Raises ConfigError."""
    from h3.attention import AttentionName
    from h3.precision import Precision

    parted = [text.partition("@") for text in texts]
    return tuple(
        (Precision.parse(precision), AttentionName.parse(attention) if attention else AttentionName.AUTO)
        for precision, _, attention in parted
    )


def _tell(text: str) -> None:
    """Progress."""
    typer.echo(text, err=True)
