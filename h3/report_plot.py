"""Draws how runs of `h3render denoise` speed up with GPUs, as a PNG. Needs matplotlib; opens no window."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from h3.errors import ConfigError
from h3.report import Line, Run, group_by_shape, trace_lines

_PANEL_INCHES = (5.0, 4.6)
_DOTS_PER_INCH = 150
# Okabe and Ito's, which most eyes can tell apart; a brown for their yellow, too pale on white.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F5539")
_MARKERS = "osD^v"
_IDEAL = "#767676"
_GRID = "#e4e4e4"

Kind = tuple[str, str, str]  # precision, mode, attention backend


@dataclass(frozen=True, slots=True)
class _Look:
    """Of the lines of a kind, in all panels."""

    label: str
    color: str
    marker: str


def draw_scaling(runs: Iterable[Run], path: Path) -> None:
    """Speed-up over GPUs, in a panel for each shape and device.

    Raises ConfigError where there is nothing to draw, or no place for it.
    """
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot {path} is no name of a PNG: let it end with .png")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: {path.parent} is no folder: make it first")
    panels = _choose_panels(runs)
    if not panels:
        raise ConfigError(f"--plot {path}: no run is on more than one GPU: give some that are")
    _draw(panels).savefig(path, format="png")


def _choose_panels(runs: Iterable[Run]) -> dict[str, list[Line]]:
    """By title."""
    panels: dict[str, list[Line]] = defaultdict(list)
    for shape, group in group_by_shape(runs).items():
        for line in trace_lines(group):
            panels[f"{line.terms.device}\n{shape}"].append(line)
    return panels


def _draw(panels: Mapping[str, Sequence[Line]]) -> Figure:
    columns = len(panels) if len(panels) < 4 else math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    size = columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]
    figure = Figure(size, _DOTS_PER_INCH, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    FigureCanvasAgg(figure)
    figure.suptitle("Speed-up of a denoise step", fontsize="large", fontweight="bold")
    looks = _choose_looks([line for lines in panels.values() for line in lines])
    for place, (title, lines) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, place, title=title, xlabel="GPUs", ylabel="speed-up")
        _draw_panel(axes, lines, looks)
    return figure


def _choose_looks(lines: Sequence[Line]) -> dict[Kind, _Look]:
    """A color for each kind, a marker for each mode."""
    kinds = sorted({_kind(line) for line in lines})
    modes = sorted({line.mode for line in lines})
    backends = {line.terms.attention_backend for line in lines}
    return {
        kind: _Look(
            label=" ".join(kind if len(backends) > 1 else kind[:2]),
            color=_COLORS[number % len(_COLORS)],
            marker=_MARKERS[modes.index(kind[1]) % len(_MARKERS)],
        )
        for number, kind in enumerate(kinds)
    }


def _kind(line: Line) -> Kind:
    return line.terms.precision, line.mode, line.terms.attention_backend


def _draw_panel(axes: Axes, lines: Sequence[Line], looks: Mapping[Kind, _Look]) -> None:
    sizes = sorted({1, *(gpus for line in lines for gpus in line.speed_ups)})
    ends = [1, sizes[-1]]
    axes.plot(ends, ends, linestyle=(0, (5, 4)), color=_IDEAL, linewidth=1.2, label="ideal")
    for line in lines:
        _draw_line(axes, line, looks[_kind(line)])
    if any(line.ideal_at > 1 for line in lines):
        axes.plot([], [], linestyle="none", label="(ideal at: no one-GPU run)")
    _scale(axes, sizes, [speed_up for line in lines for speed_up in line.speed_ups.values()])
    # The corner above the ideal line is free.
    legend = axes.legend(loc="upper left", fontsize="small", facecolor="white", edgecolor="none")
    for text in (axes.title, *legend.get_texts()):
        text.set_parse_math(False)  # a name may hold a dollar


def _draw_line(axes: Axes, line: Line, look: _Look) -> None:
    axes.plot(
        list(line.speed_ups),
        list(line.speed_ups.values()),
        color=look.color,
        linewidth=2,
        marker=look.marker,
        markersize=7,
        markeredgecolor="white",
        label=look.label if line.ideal_at == 1 else f"{look.label}, ideal at {line.ideal_at}",
        clip_on=False,  # or the frame would cut the markers that lie on it
        zorder=3,
    )


def _scale(axes: Axes, sizes: Sequence[int], speed_ups: Sequence[float]) -> None:
    """From 1 to the ideal; further where a line is above it, or more GPUs are slower than one."""
    axes.set_xlim(1, sizes[-1])
    axes.set_ylim(1 if min(speed_ups) >= 1 else 0, max(sizes[-1], *speed_ups))
    axes.set_xticks(sizes)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
    axes.title.set_fontsize("medium")
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
