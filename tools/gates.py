"""Figures of a run that is judged, with limits to some of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import typer


@dataclass
class Gates:
    """What was measured, and which limits were missed."""

    figures: dict[str, object] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def tell(self, name: str, value: object) -> None:
        self.figures[name] = value
        typer.echo(f"{name}: {value}", err=True)

    def at_most(self, name: str, value: float, limit: float) -> None:
        self._judge(name, value, value <= limit, at_most=limit)

    def at_least(self, name: str, value: float, limit: float) -> None:
        self._judge(name, value, value >= limit, at_least=limit)

    def _judge(self, name: str, value: float, is_met: bool, **limit: float) -> None:
        self.tell(name, {"value": value, **limit, "met": is_met})
        if not is_met:
            self.missed.append(name)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The L2 of their difference, in parts of the expected one's."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def judge(measure: Callable[[Gates], None], about: dict[str, object], target: Path | None) -> None:
    """Measure, write all as JSON to the target or stdout, and end the program: 1 if a limit is missed."""
    gates, error = Gates(), None
    try:
        measure(gates)
    except Exception as exc:  # what was measured before it is told all the same
        error = f"{type(exc).__name__}: {exc}"
    told = {**about, "missed": gates.missed, **({"error": error} if error else {})}
    text = json.dumps({**told, "figures": gates.figures}, indent=2)
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")
    typer.echo(text)
    raise typer.Exit(bool(gates.missed or error))
