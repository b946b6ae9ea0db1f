"""Cost against waiting, for each fleet, as a PNG. Needs matplotlib and pillow; opens no window."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from tools.simulate_nights.figures import FLEETS, RECONCILER, FleetFigures, NightFigures, Spread, sum_up

_INCHES, _DOTS_PER_INCH = (11.0, 4.8), 110
_COLORS = ("#D55E00", "#56B4E9", "#0072B2", "#009E73", "#7F5539", "#767676")
_GRID = "#e4e4e4"
_PALETTE = 64  # colors that the file has


def draw_nights(nights: Sequence[NightFigures], path: Path) -> None:
    figure = Figure(_INCHES, _DOTS_PER_INCH, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    FigureCanvasAgg(figure)
    figure.suptitle(f"{len(nights):,} simulated nights", fontsize="large", fontweight="bold")
    left, right = figure.subplots(1, 2)
    _draw_points(left, nights)
    _draw_spreads(right, [sum_up(fleet, nights) for fleet in FLEETS])
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(_PALETTE).save(path, optimize=True)


def _draw_points(axes: Axes, nights: Sequence[NightFigures]) -> None:
    """All jobs of all nights, a point for each fleet; behind them each night with the reconciler."""
    bills = [night.bills[RECONCILER] for night in nights]
    waits = [Spread.of(bill.waits_s).p95 / 60 for bill in bills]
    axes.scatter([bill.usd for bill in bills], waits, s=5, color=_COLORS[0], alpha=0.15, linewidths=0)
    for fleet, color in zip(FLEETS, _COLORS, strict=True):
        figures = sum_up(fleet, nights)
        spot = figures.usd.mean, figures.wait_s.p95 / 60
        axes.scatter(*spot, s=90, color=color, edgecolors="white", zorder=3, label=fleet)
    axes.set(title="all jobs (small: each night with the reconciler)", xlabel="USD a night", ylabel="p95 wait, minutes")
    axes.legend(fontsize="small", loc="upper right")
    _tidy(axes)


def _draw_spreads(axes: Axes, fleets: Sequence[FleetFigures]) -> None:
    """Over nights: the middle half, and nine of ten."""
    for place, (figures, color) in enumerate(zip(fleets, _COLORS, strict=True)):
        spread = figures.night_wait_s
        axes.plot([spread.p5 / 60, spread.p95 / 60], [place, place], color=color, linewidth=1.5)
        axes.plot([spread.p25 / 60, spread.p75 / 60], [place, place], color=color, linewidth=9, solid_capstyle="butt")
        axes.plot(spread.p50 / 60, place, marker="|", markersize=14, color="black")
    labels = [f"{one.fleet}\n{one.finished:.0%} finished, {one.usd_per_rendered_hour:.0f} USD/h" for one in fleets]
    axes.set_yticks(range(len(fleets)), labels, fontsize="small")
    axes.invert_yaxis()
    axes.set(title="a night's p95 wait: median, half and nine tenths of nights", xlabel="minutes")
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.title.set_fontsize("medium")
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
