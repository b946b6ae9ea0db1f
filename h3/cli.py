"""Commands about checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from h3.errors import ConfigError, H3Error, RanksFailed

if TYPE_CHECKING:
    import torch

Choice = TypeVar("Choice", bound=StrEnum)

app = typer.Typer()
checkpoint_app = typer.Typer(no_args_is_help=True, help="Write and check checkpoints.")
app.add_typer(checkpoint_app, name="checkpoint")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Tell a person what is wrong, without a traceback, and exit 2; 1 if the usage was right."""
    try:
        yield
    except RanksFailed as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(1) from exc
    except (H3Error, OSError) as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(2) from exc


def choose(choices: type[Choice], text: str, flag: str) -> Choice:
    """One of an enum's values. Raises ConfigError naming them."""
    try:
        return choices(text)
    except ValueError as exc:
        raise ConfigError(f"{flag} {text!r} is not one of {', '.join(choices)}") from exc


@checkpoint_app.command("tiny")
def write_tiny_checkpoint(
    folder: Annotated[Path, typer.Argument(help="Where to write it.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
) -> None:
    """Write an untrained H3 of toy size, in the official layout: for trying things out; its picture is noise."""
    from h3.model_folder import require_new

    with plain_errors():
        require_new(folder)
        from h3.tiny import write_tiny  # after that: it imports for seconds

        write_tiny(folder, seed)
    typer.echo(folder)


@checkpoint_app.command("demo")
def write_demo_checkpoint(
    folder: Annotated[Path, typer.Argument(help="Where to write it.")],
    precision: Annotated[str, typer.Option(help="bf16, or nvfp4: its weights in 4 bits.")] = "bf16",
) -> None:
    """Write the small H3 that comes with the program: it draws moving shapes as a caption says, and plays a tone."""
    from h3.precision import Precision

    with plain_errors():
        kept = Precision.parse(precision)
        from h3.demo_model import write_demo_model

        write_demo_model(folder, kept)
    typer.echo(folder)


@checkpoint_app.command("check")
def check_checkpoint(folder: Annotated[Path, typer.Argument(help="Root of a checkpoint.")]) -> None:
    """Check from the files' headers that nothing is missing or cut short."""
    from h3.model_folder import ModelFolder

    with plain_errors():
        parts = ModelFolder.below(folder)
        parts.check()
        typer.echo(f"whole, digest {parts.digest()}")


@checkpoint_app.command("inspect")
def inspect_checkpoint(
    path: Annotated[
        Path, typer.Argument(help="The denoiser: its folder or .safetensors file, or a checkpoint's root.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Tell what a denoiser's files hold: format, precision by kind of layer, order of q, k and v, sizes, hashes."""
    from h3.inspection import inspect
    from h3.model_folder import find_denoiser

    with plain_errors():
        found = inspect(find_denoiser(path))
    typer.echo(found.as_json() if as_json else "\n".join(found.lines()))


@checkpoint_app.command("convert")
def convert_checkpoint(
    source: Annotated[Path, typer.Argument(help="The denoiser: its folder or .safetensors file, or a root.")],
    target: Annotated[Path, typer.Argument(help="A new folder, or a new .safetensors file for the comfy formats.")],
    to: Annotated[str, typer.Option(help="official, diffusers, comfy-pruned or comfy-nvfp4.")],
    qkv_order: Annotated[
        str | None, typer.Option(help="interleaved or contiguous: how q, k and v lie in the source, if not as usual.")
    ] = None,
) -> None:
    """Write a denoiser in another format, tensor by tensor; run again, it goes on where it was stopped."""
    from h3.convert import Target, convert
    from h3.families import QkvOrder
    from h3.model_folder import find_denoiser

    with plain_errors():
        order = None if qkv_order is None else choose(QkvOrder, qkv_order, "--qkv-order")
        convert(find_denoiser(source), target, choose(Target, to, "--to"), order)
    typer.echo(target)


Model = Annotated[Path, typer.Option(help="Root of a checkpoint, or the denoiser's folder or .safetensors file.")]
Device = Annotated[str | None, typer.Option(help="cuda or cpu (default: cuda, where there is one).")]


@app.command("encode-text")
def encode_text_command(
    model: Annotated[Path, typer.Option(help="Root of a checkpoint.")],
    prompt: Annotated[str, typer.Option(help="As the render would have it.")],
    out: Annotated[Path, typer.Option(help="A .safetensors file to write.")],
    first_frame: Annotated[Path | None, typer.Option(help="Picture that the video begins with.")] = None,
    last_frame: Annotated[Path | None, typer.Option(help="Picture that the video ends with.")] = None,
    width: Annotated[int | None, typer.Option(help="Pixels of the video; with pictures only.")] = None,
    height: Annotated[int | None, typer.Option(help="Pixels of the video; with pictures only.")] = None,
    device: Device = None,
) -> None:
    """Encode a prompt, and keyframes, to a file that `denoise` reads."""
    from h3.on_files import encode_text
    from h3.sequence import CLIP_FRAMES, TAIL_FRAMES, Anchor, Geometry

    pictures = {Anchor.FIRST: first_frame, Anchor.LAST: last_frame}
    with plain_errors():
        if (width is None) != (height is None):
            raise ConfigError("--width and --height go together")
        # Any number of frames will do: a keyframe is one picture.
        size = None if width is None or height is None else Geometry(width, height, CLIP_FRAMES + TAIL_FRAMES)
        given = {anchor: path for anchor, path in pictures.items() if path}
        tokens = encode_text(model, prompt, given, size, pick_device(device), out)
    typer.echo(f"{out}: {tokens} tokens")


@app.command("denoise")
def denoise_command(
    model: Model,
    text_states: Annotated[Path, typer.Option(help="What `encode-text` has written.")],
    out: Annotated[Path, typer.Option(help="Folder for latents.safetensors and report.json.")],
    width: Annotated[int, typer.Option(help="Pixels, a multiple of 32.")] = 864,
    height: Annotated[int, typer.Option(help="Pixels, a multiple of 32.")] = 480,
    frames: Annotated[int, typer.Option(help="17n + 5.")] = 141,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Model evaluations.")] = 50,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the noise.")] = 0,
    noise: Annotated[Path | None, typer.Option(help="Latents to begin with, in place of the seed's.")] = None,
    mode: Annotated[str, typer.Option(help="How ranks share the render: ulysses or tensor.")] = "ulysses",
    world_size: Annotated[int, typer.Option(min=1, help="Ranks; on a GPU machine, GPUs.")] = 1,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, nvfp4 or fp8 (default: as stored).")] = None,
    attention: Annotated[str, typer.Option(help="auto, sdpa, cudnn, flash, efficient, fa3, fa3-fp8 or sage.")] = "auto",
    device: Device = None,
) -> None:
    """Denoise from files to files, without a queue."""
    from h3.attention import AttentionName
    from h3.denoise_fleet import DenoiseRequest, Ranks
    from h3.on_files import denoise
    from h3.parallel.mode import Mode
    from h3.precision import Precision
    from h3.sequence import Geometry

    with plain_errors():
        kept = Precision.parse(precision) if precision else None
        backend = choose(AttentionName, attention, "--attention")
        report = denoise(
            model,
            Ranks(world_size, pick_device(device).type, choose(Mode, mode, "--mode"), kept, backend),
            DenoiseRequest(text_states, noise, Geometry(width, height, frames), steps, seed),
            out,
            tell=lambda step: typer.echo(f"step {step.step}/{steps} {step.seconds:.3f} s", err=True),
        )
    typer.echo(report)


@app.command("decode")
def decode_command(
    model: Annotated[Path, typer.Option(help="Root of a checkpoint.")],
    latents: Annotated[Path, typer.Option(help="What `denoise` has written.")],
    out: Annotated[Path, typer.Option(help="An .mp4 file to write.")],
    device: Device = None,
) -> None:
    """Decode latents to a video with sound."""
    from h3.on_files import decode

    with plain_errors():
        typer.echo(decode(model, latents, pick_device(device), out))


def pick_device(name: str | None) -> "torch.device":
    """The one that is asked for, else the first GPU, else the CPU. Raises ConfigError."""
    import torch

    if name not in (None, "cuda", "cpu"):
        raise ConfigError(f"--device {name!r} is not one of cuda, cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU here")
    return torch.device("cpu") if name == "cpu" or not torch.cuda.is_available() else torch.device("cuda", 0)


@app.command("sheet")
def sheet_command(
    video: Annotated[Path, typer.Argument(help="A file with pictures.")],
    out: Annotated[Path, typer.Argument(help="A picture to write: .png, .jpg or .webp.")],
    columns: Annotated[int, typer.Option(min=1)] = 4,
    rows: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Draw frames of a video beside each other, evenly from the first to the last."""
    from h3.contact_sheet import write_contact_sheet

    with plain_errors():
        write_contact_sheet(video, out, columns=columns, rows=rows)
    typer.echo(out)


@app.command("report")
def report_command(
    reports: Annotated[list[Path], typer.Argument(help="What `denoise` has written, or files of many such runs.")],
    plot: Annotated[Path | None, typer.Option(help="A .png file to write: speed-up over GPUs.")] = None,
) -> None:
    """Compare runs of `denoise`: time by GPUs, transport, memory, and whether latents were reproduced."""
    from h3.report import read_runs
    from h3.report_table import print_report

    with plain_errors():
        runs = read_runs(reports)
        if plot:
            from h3.report_plot import draw_scaling  # matplotlib comes with an extra of its own

            draw_scaling(runs, plot)
    print_report(runs)
    if plot:
        typer.echo(plot)
