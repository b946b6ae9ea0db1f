"""Says what a finished video shows and sounds like, in words. Arithmetic on pixels and samples; knows no model.

The background is what the border shows, the shape what differs from it; the shape's centre is followed from frame to
frame, its outline told by how much of its bounding box it fills. The tone is the peak of the spectrum. What is not
clearly one of the words is `UNCLEAR`.
"""

import colorsys
import re
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from PIL import Image

from tests.end_to_end.video import read

UNCLEAR = "unclear"
# Degrees of hue, from and to.
HUES = {"yellow": (38, 75), "green": (90, 170), "blue": (200, 258), "purple": (265, 325)}
BLACK_BELOW, WHITE_ABOVE, GREY_BELOW = 0.25, 0.75, 0.25  # value, value, saturation
LEAST_CONTRAST = 60.0  # distance in RGB between shape and background
AREAS = (0.004, 0.3)  # of the picture: less is a speck, more is no shape
FILLS = {"triangle": (0.40, 0.64), "circle": (0.68, 0.87), "square": (0.89, 1.05)}  # of the bounding box
LEAST_TRAVEL = 0.08  # of the picture's height, from the first frame to the last
STRAIGHT = 2.5  # so much farther along one axis than along the other
SMALL_BELOW = 0.31  # the bounding box, of the picture's height
SLOW_BELOW = 0.325  # the travel, likewise
PITCHES = {"low": (100, 320), "middle": (340, 750), "high": (800, 1600)}  # Hz
TONAL = 0.3  # the least share of the sound's energy near its peak
LOUDER = 4.0  # energy of one side over the other


@dataclass(frozen=True)
class Seen:
    """One word for each."""

    shape: str
    colour: str
    background: str
    direction: str
    size: str
    speed: str
    pitch: str
    side: str


def judge(path: Path) -> Seen:
    """Of a video file with sound."""
    contents = read(path)
    return Seen(**look(contents.pictures), **listen(contents.samples, contents.sample_rate))


def look(pictures: np.ndarray) -> dict[str, str]:
    """pictures [F, H, W, 3] uint8"""
    frames = pictures.astype(np.float32)
    height = frames.shape[1]
    ground = np.median(_border(frames), axis=0)
    distance = np.linalg.norm(frames - ground, axis=-1)  # [F, H, W]
    contrast = np.quantile(distance, 1 - AREAS[0], axis=(1, 2))  # of each frame
    masks = distance > np.maximum(contrast, LEAST_CONTRAST)[:, None, None] / 2
    areas = masks.mean(axis=(1, 2))
    clear = (contrast > LEAST_CONTRAST) & (areas > AREAS[0]) & (areas < AREAS[1])
    seen = {"background": name_colour(ground)}
    if clear.mean() < 0.8:
        return seen | dict.fromkeys(("shape", "colour", "direction", "size", "speed"), UNCLEAR)
    outlines = [_outline(mask) for mask in masks[clear]]
    centres = np.array([outline.centre for outline in outlines])
    inner = frames[clear][distance[clear] > 0.8 * contrast[clear][:, None, None]]
    travel = _travel(np.flatnonzero(clear), centres, len(frames)) / height
    extent = float(np.median([outline.extent for outline in outlines])) / height
    return seen | {
        "shape": name_shape(float(np.median([outline.fill for outline in outlines]))),
        "colour": name_colour(np.median(inner, axis=0)),
        "direction": name_direction(travel),
        "size": "small" if extent < SMALL_BELOW else "large",
        "speed": "slowly" if np.abs(travel).max() < SLOW_BELOW else "quickly",
    }


def listen(samples: np.ndarray, rate: int) -> dict[str, str]:
    """samples [2, S]"""
    energies = np.square(samples.astype(np.float64)).mean(axis=1)
    louder = int(energies.argmax())
    if energies[louder] < 1e-6:
        return {"pitch": UNCLEAR, "side": UNCLEAR}
    wave = samples[louder] * np.hanning(samples.shape[1])
    power = np.square(np.abs(np.fft.rfft(wave)))
    peak = int(power.argmax())
    share = power[max(0, peak - 8) : peak + 9].sum() / power.sum()
    hertz = peak * rate / samples.shape[1]
    pitch = next((name for name, (low, high) in PITCHES.items() if low <= hertz <= high), UNCLEAR)
    is_one_sided = energies[louder] > LOUDER * energies[1 - louder]
    return {
        "pitch": pitch if share > TONAL else UNCLEAR,
        "side": ("left", "right")[louder] if is_one_sided else UNCLEAR,
    }


def first_frame_psnr_db(path: Path, picture: Path) -> float:
    """How near a video's first frame is to a picture of its size: above 30 nobody sees a difference."""
    with Image.open(picture) as image:
        wanted = np.asarray(image.convert("RGB"), dtype=np.float64)
    squares = np.square(read(path).pictures[0] - wanted).mean()
    return float(10 * np.log10(255**2 / max(squares, 1e-9)))


def name_colour(rgb: np.ndarray) -> str:
    hue, saturation, value = colorsys.rgb_to_hsv(*(float(part) / 255 for part in rgb))
    if value < BLACK_BELOW:
        return "black"
    if saturation < GREY_BELOW:
        return "white" if value > WHITE_ABOVE else UNCLEAR
    degrees = hue * 360
    if degrees < 20 or degrees > 340:
        return "red"
    return next((name for name, (low, high) in HUES.items() if low <= degrees <= high), UNCLEAR)


def name_shape(fill: float) -> str:
    return next((name for name, (low, high) in FILLS.items() if low <= fill <= high), UNCLEAR)


def name_direction(travel: np.ndarray) -> str:
    """travel: x and y, of the picture's height"""
    across, down = np.abs(travel)
    if max(across, down) < LEAST_TRAVEL or max(across, down) < STRAIGHT * min(across, down):
        return UNCLEAR
    if across > down:
        return "right" if travel[0] > 0 else "left"
    return "down" if travel[1] > 0 else "up"


@dataclass(frozen=True)
class _Outline:
    centre: tuple[float, float]  # x, y
    fill: float  # of its bounding box
    extent: float  # its longer side, pixels


def _outline(mask: np.ndarray) -> _Outline:
    rows, columns = np.nonzero(mask)
    # A row or column belongs to the shape if a stray pixel cannot make it so.
    inside = mask[np.ix_(mask.sum(axis=1) > 1, mask.sum(axis=0) > 1)]
    sides = [side[-1] - side[0] + 1 for side in (np.flatnonzero(mask.sum(axis=axis) > 1) for axis in (0, 1))]
    return _Outline((columns.mean(), rows.mean()), inside.sum() / max(1, sides[0] * sides[1]), max(sides))


def _travel(frames: np.ndarray, centres: np.ndarray, count: int) -> np.ndarray:
    """Pixels in x and y from the first frame to the last, by the straight line closest to the centres."""
    return np.polyfit(frames, centres, 1)[0] * (count - 1)


def _border(frames: np.ndarray) -> np.ndarray:
    edge = 3
    bands = (frames[:, :edge], frames[:, -edge:], frames[:, :, :edge], frames[:, :, -edge:])
    return np.concatenate([band.reshape(-1, 3) for band in bands])


_COLOUR = "red|green|blue|yellow|purple|white|black"
_SAID = {
    "shape": r"\b(circle|square|triangle)\b",
    "colour": rf"\b({_COLOUR}) (?:circle|square|triangle)",
    "background": rf"\b(?:over|on a) ({_COLOUR})\b",
    "direction": r"\bmov(?:ing|es) (?:slowly |quickly )?(left|right|up|down)\b",
    "size": r"\b(small|large)\b",
    "speed": r"\b(slowly|quickly)\b",
    "pitch": r"\b(low|middle|high) tone\b",
    "side": r"\btone on the (left|right)\b",
}


def said(prompt: str) -> dict[str, str]:
    """What a prompt asks for, of all that can be seen and heard."""
    return {name: found[1] for name, pattern in _SAID.items() if (found := re.search(pattern, prompt))}


def wrong(prompt: str, seen: Seen) -> dict[str, str]:
    """What is seen and heard otherwise than the prompt asks for."""
    return {name: getattr(seen, name) for name, word in said(prompt).items() if getattr(seen, name) != word}


ASPECTS = tuple(field.name for field in fields(Seen))
