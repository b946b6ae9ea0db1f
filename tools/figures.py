"""What the benches say of a row of figures."""

import statistics
from collections.abc import Callable, Sequence


def percentile_95(figures: Sequence[float]) -> float:
    return statistics.quantiles(figures, n=20)[-1]


def show_figures(figures: Sequence[float], show: Callable[[float], str]) -> str:
    """One figure as it is, of several the middle, the slow end and how many there are."""
    if len(figures) == 1:
        return show(figures[0])
    return f"p50 {show(statistics.median(figures))}, p95 {show(percentile_95(figures))}, n {len(figures)}"
