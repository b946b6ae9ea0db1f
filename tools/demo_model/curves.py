"""Draws the losses of every training over its steps, as one PNG. Needs matplotlib; opens no window."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

_PANEL_INCHES = (4.0, 3.0)
_DOTS_PER_INCH = 80
_COLORS = 64  # of the file
TERMS = {
    "audio": ("wave", "spectrum, 256", "spectrum, 1024", "spectrum, 2048", "KL"),
    "video-whole": ("squared error", "absolute error", "KL"),
    "video-decoder": ("squared error", "absolute error"),
    "denoiser": ("velocity of video", "velocity of audio"),
}

Losses = list[tuple[int, list[float]]]


def plot_losses(states: Sequence[Path], png: Path) -> None:
    """Of the trainings that have begun, from the files that they go on from."""
    found = {
        path.stem: torch.load(path, map_location="cpu", weights_only=True)["losses"]
        for path in states
        if path.is_file()
    }
    if found:
        draw_losses(found, png)


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
