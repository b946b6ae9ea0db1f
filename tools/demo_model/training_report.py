"""What a training leaves beside its model: how long it was and where its losses ended, their curves, and checksums."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from h3.demo_model import CHECKSUMS

TERMS = {
    "audio": ("wave", "spectrum, 256", "spectrum, 1024", "spectrum, 2048", "KL"),
    "video": ("squared error", "absolute error"),
    "denoiser": ("velocity of video", "velocity of audio"),
}
_PANEL_INCHES = (4.0, 3.0)
_DOTS_PER_INCH = 80
_COLORS = 64  # of the file
_LAST = 25  # losses, of which the mean is where a training ended

Losses = list[tuple[int, list[float]]]


def write_report(files: Sequence[Path], machine: dict[str, object], out: Path) -> None:
    """Of the trainings that have begun, from the files that they go on from."""
    states = {path.stem: torch.load(path, map_location="cpu", weights_only=True) for path in files if path.is_file()}
    trainings = {name: _describe(name, state) for name, state in states.items()}
    report = {"version": 1, "machine": machine, "trainings": trainings}
    (out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    draw_losses({name: state["losses"] for name, state in states.items()}, out / "losses.png")
    write_checksums(out)


def _describe(name: str, state: dict[str, object]) -> dict[str, object]:
    ends = zip(*(values for _, values in state["losses"][-_LAST:]), strict=True)  # each term's
    losses = {term: float(f"{np.mean(end):.3g}") for term, end in zip(TERMS[name], ends, strict=False)}
    return {"steps": state["step"], "seconds": round(state["seconds"]), "last losses": losses}


def draw_losses(losses: dict[str, Losses], png: Path) -> None:
    """By the names of the trainings; each with the terms of its loss, step by step."""
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(losses), height), dpi=_DOTS_PER_INCH, layout="constrained")
    for panel, (name, points) in zip(figure.subplots(1, len(losses), squeeze=False)[0], losses.items(), strict=True):
        steps = [step for step, _ in points]
        for place, term in enumerate(TERMS[name]):
            panel.plot(steps, [values[place] for _, values in points], label=term, linewidth=1)
        panel.set(title=name, xlabel="step", yscale="log")
        panel.grid(visible=True, color="#e4e4e4")
        panel.legend(fontsize="small", frameon=False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(_COLORS)  # a fifth of the bytes
    picture.save(png, optimize=True)


def write_checksums(root: Path) -> None:
    """Of everything in the folders below `root`, as `sha256sum` writes and checks them."""
    files = sorted(path for path in root.glob("*/**/*") if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root).as_posix()}" for path in files]
    (root / CHECKSUMS).write_text("\n".join(lines) + "\n")
