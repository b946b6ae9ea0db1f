"""Draws where a step's parts stand against what the device can do, as a PNG. Needs matplotlib; opens no window."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from h3.bench.step import Outcome, PartTime, Result
from h3.bench.work import Ceilings, Part, show_tera

_ROW_INCHES = (12.5, 4.4)
_DOTS_PER_INCH = 120
# Okabe and Ito's, which most eyes can tell apart.
_COLORS = {
    Part.QKV: "#0072B2",
    Part.ATTENTION: "#D55E00",
    Part.OUT: "#009E73",
    Part.FC1: "#CC79A7",
    Part.FC2: "#56B4E9",
}
_TIME, _FLOOR, _ROOF, _GRID = "#0072B2", "#E69F00", "#444444", "#e4e4e4"
_LEAST, _MOST = 1.0, 1e5  # operations a byte that are shown


def draw_roofline(outcome: Outcome, path: Path) -> None:
    """A row for each of ours at each shape: the roofline with the parts in it, and their times beside their floors."""
    shown = [result for result in outcome.results if result.parts]
    width, height = _ROW_INCHES
    figure = Figure((width, height * len(shown)), _DOTS_PER_INCH, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    FigureCanvasAgg(figure)
    for row, result in enumerate(shown):
        geometry = result.layout.geometry
        title = f"{result.name}, {geometry.width}x{geometry.height}, {geometry.frames} frames: {result.step_s:.3f} s"
        axes = figure.add_subplot(len(shown), 2, 2 * row + 1, title=title)
        _draw_roofs(axes, outcome.ceilings)
        _draw_points(axes, result)
        _draw_times(figure.add_subplot(len(shown), 2, 2 * row + 2, title="time of each part, and its floor"), result)
    figure.savefig(path, format="png")


def _draw_roofs(axes: Axes, ceilings: Ceilings) -> None:
    roofs = {"bf16": ceilings.bf16_per_s, **({"FP8": ceilings.fp8_per_s} if ceilings.fp8_per_s else {})}
    top = max(roofs.values())
    axes.plot([_LEAST, top / ceilings.bytes_per_s], [_LEAST * ceilings.bytes_per_s, top], color=_ROOF, linewidth=1.5)
    for name, rate in roofs.items():
        axes.plot([rate / ceilings.bytes_per_s, _MOST], [rate, rate], color=_ROOF, linewidth=1.5)
        axes.annotate(f"{name}, {show_tera(rate)}FLOP/s", (_MOST, rate), ha="right", va="bottom", fontsize="small")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(_LEAST, _MOST)
    axes.set_ylim(_LEAST * ceilings.bytes_per_s, 3 * top)
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("operations a second")
    _clear(axes)


def _draw_points(axes: Axes, result: Result) -> None:
    for part, time in _computing(result):
        axes.plot(
            time.operations / time.bytes,
            time.operations / time.seconds,
            label=part,
            color=_COLORS[part],
            marker="o",
            markersize=8,
            markeredgecolor="white",
            linestyle="none",
        )
    axes.legend(loc="lower right", fontsize="small")


def _computing(result: Result) -> Sequence[tuple[Part, PartTime]]:
    return [(part, time) for part, time in result.parts.items() if part in _COLORS]


def _draw_times(axes: Axes, result: Result) -> None:
    names = [str(part) for part in result.parts]
    places = range(len(names))
    seconds = [1000 * time.seconds for time in result.parts.values()]
    floors = [1000 * time.floor_s for time in result.parts.values()]
    axes.barh([place - 0.19 for place in places], seconds, 0.36, color=_TIME, label="time")
    axes.barh([place + 0.19 for place in places], floors, 0.36, color=_FLOOR, label="floor")
    for place, (time, floor) in enumerate(zip(seconds, floors, strict=True)):
        told = f" {time:.1f}" + (f" ({time / floor:.2f} x)" if floor >= time / 100 else "")
        axes.annotate(told, (max(time, floor), place), va="center", fontsize="small")
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(seconds))
    axes.set_xlabel("ms")
    axes.legend(loc="lower right", fontsize="small")
    _clear(axes)


def _clear(axes: Axes) -> None:
    axes.title.set_fontsize("medium")
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
