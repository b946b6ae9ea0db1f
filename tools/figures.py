"""What the benches say of a row of figures."""

import statistics
from collections.abc import Callable, Sequence


def percentile_95(figures: Sequence[float]) -> float:
    return statistics.quantiles(figures, n=20)[-1]


def summarize(figures: Sequence[float], unit: str) -> dict[str, object]:
    """The same for a report."""
    if len(figures) < 2:
        return {"value": figures[0], "unit": unit} if figures else {}
    p50, p95 = statistics.median(figures), percentile_95(figures)
    return {"p50": p50, "p95": p95, "n": len(figures), "unit": unit}


def show_figures(figures: Sequence[float], show: Callable[[float], str]) -> str:
    """One figure as it is, of several the middle, the slow end and how many there are."""
    if len(figures) == 1:
        return show(figures[0])
    return f"p50 {show(statistics.median(figures))}, p95 {show(percentile_95(figures))}, n {len(figures)}"
