"""Shows runs of `h3render denoise` as tables for people, with what is to be said of them in sentences."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from h3.report import Repeats, Run, Shape, find_baseline_s, find_incomparable, find_repeats, group_by_shape

_WIDTH = 500  # more than a table has: a terminal wraps what it cannot show, a pipe gets whole lines
_NUMBERS = ("GPUs", "steps", "step", "speed-up", "efficiency", "transport", "sent", "peak", "weights")
_HEADINGS = ("GPUs", "mode", "precision", "attention", *_NUMBERS[1:], "device", "NCCL")
_LEGEND = """\
step        the median, without the first
speed-up    against one GPU: same shape, precision, attention and device
transport   share of a step, waiting for peers included; of the rank that has most
sent        to peers in a step; of the rank that has most
peak        GPU memory while denoising; of the rank that has most
weights     the denoiser's; of the rank that has most
"""


def print_report(runs: Sequence[Run]) -> None:
    """To stdout: a table for each shape, the legend, and a line for each thing to know."""
    console = Console(width=_WIDTH, highlight=False, markup=False, emoji=False)
    for shape, group in group_by_shape(runs).items():
        console.print(_draw_table(shape, group))
        console.print()
    console.print(_LEGEND)
    for line in _tell(runs):
        console.print(line, soft_wrap=True)


def _draw_table(shape: Shape, runs: Sequence[Run]) -> Table:
    table = Table(
        title=str(shape),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
    for run in runs:
        table.add_row(*_row(run, runs))
    return table


def _row(run: Run, runs: Sequence[Run]) -> tuple[str, ...]:
    known, transport, machine = run.provenance, run.transport, run.machine
    return (
        str(run.gpus),
        known.mode,
        known.precision,
        known.attention_backend,
        str(run.steps),
        f"{run.median_step_s:.3f} s",
        *_show_speed_up(run, find_baseline_s(runs, run.terms)),
        f"{transport.share:.1%}" if transport else "-",
        f"{transport.sent_bytes / 1e9:.2f} GB" if transport else "-",
        _show_largest(run.peak_bytes),
        _show_largest(run.weight_bytes),
        known.device,
        ", ".join(machine.nccl_transport or ()) or "-" if machine else "-",
    )


def _show_speed_up(run: Run, baseline_s: float | None) -> tuple[str, str]:
    """With its efficiency."""
    if baseline_s is None:
        return "-", "-"
    speed_up = baseline_s / run.median_step_s
    return f"{speed_up:.2f}x", f"{speed_up / run.gpus:.1%}"


def _show_largest(sizes_bytes: Sequence[int] | None) -> str:
    """Of all ranks; the CPU's, which are not measured, are 0."""
    return f"{max(sizes_bytes) / 2**30:.2f} GiB" if sizes_bytes and any(sizes_bytes) else "-"


def _tell(runs: Sequence[Run]) -> Iterator[str]:
    for what, values in find_incomparable(runs).items():
        yield f"careful: the runs are of different {what} ({', '.join(values)}), so their times do not compare"
    for repeats in find_repeats(runs):
        yield _tell_repeats(repeats)


def _tell_repeats(repeats: Repeats) -> str:
    run = repeats.runs[0]
    known = run.provenance
    what = (
        f"{run.shape}, {run.steps} steps, seed {run.seed}, "
        f"{known.precision} {known.mode} on {run.gpus} x {known.device}: {len(repeats.runs)} runs"
    )
    if repeats.latents == 1:
        return f"reproduced: {what} with equal latents"
    also = "; ".join(f"{name} ({', '.join(values)})" for name, values in repeats.differences.items())
    return f"not reproduced: {what} with {repeats.latents} different latents" + (also and f"; different, too: {also}")
