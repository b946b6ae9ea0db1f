"""Draws scenes: a flat shape that moves over a flat background, and a tone that is louder on one side.

Everything is made in batches on a device; what varies between clips of one scene is drawn once, on the CPU, so that a
seed gives the same clips on any machine. Letters: N clips, F frames, H and W pixels, S samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from h3.sequence import AUDIO_RATE_HZ, Geometry
from tools.demo_model.scenes import WORDS, Scene

PALETTE = {
    "red": (0.86, 0.14, 0.14),
    "green": (0.13, 0.62, 0.22),
    "blue": (0.14, 0.30, 0.86),
    "yellow": (0.95, 0.84, 0.16),
    "purple": (0.60, 0.16, 0.72),
    "white": (0.95, 0.95, 0.95),
    "black": (0.06, 0.06, 0.06),
}
RADII = {"small": (17.0, 21.0), "large": (29.0, 34.0)}  # pixels, in a picture that is REFERENCE_HEIGHT high
TRAVELS = {"slowly": (28.0, 38.0), "quickly": (66.0, 78.0)}  # from the first frame to the last
HEADINGS = {"left": (-1.0, 0.0), "right": (1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}
# In periods of an audio latent (40 Hz), so that all latents of a tone are alike.
PERIODS = {"low": (4, 6), "middle": (11, 14), "high": (26, 32)}
LOUDNESS = (0.3, 0.5)
QUIET_SIDE = 0.1  # of the loud one
REFERENCE_HEIGHT = 160.0
COLOUR_SPREAD = 0.03
TRIANGLE = 1.15  # its circumscribed circle, in radii
SQUARE = 0.89  # half its side
ASTRAY = 10.0  # pixels at most from a path through the middle: so a caption alone tells most of what is seen
_MARGIN = 2.0
_FADE_S = 0.04


@dataclass(frozen=True, slots=True)
class Clips:
    """What was drawn for N clips; pixels and frames are those of `geometry`."""

    geometry: Geometry
    shape: Tensor  # [N] index into WORDS["shape"]
    radius: Tensor  # [N]
    start: Tensor  # [N, 2], x and y of the centre in the first frame
    velocity: Tensor  # [N, 2] pixels a frame
    colour: Tensor  # [N, 3] in 0..1
    ground: Tensor  # [N, 3]
    hertz: Tensor  # [N]
    loudness: Tensor  # [N, 2], left and right

    def __len__(self) -> int:
        return len(self.radius)

    def rows(self, chosen: Tensor | slice) -> "Clips":
        kept = {name: getattr(self, name)[chosen] for name in self.__slots__ if name != "geometry"}
        return Clips(self.geometry, **kept)

    def to(self, device: torch.device) -> "Clips":
        moved = {name: getattr(self, name).to(device) for name in self.__slots__ if name != "geometry"}
        return Clips(self.geometry, **moved)


def sample_clips(scenes: Sequence[Scene], geometry: Geometry, seed: int) -> Clips:
    """One clip for each scene, with its own place, size, speed, tint and pitch. Shapes stay inside the picture.

    They pass near its middle. From anywhere to anywhere, a small model learns no direction: the mean of all clips of a
    caption, which is what it learns first, is then a blur that stands still.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(ranges: Sequence[tuple[float, float]]) -> Tensor:
        low, high = torch.tensor(ranges, dtype=torch.float32).unbind(1)
        return low + (high - low) * torch.rand(len(ranges), generator=generator)

    count, scale = len(scenes), geometry.height / REFERENCE_HEIGHT
    radius = uniform([RADII[s.size] for s in scenes]) * scale
    travel = uniform([TRAVELS[s.speed] for s in scenes]) * scale
    heading = torch.tensor([HEADINGS[s.direction] for s in scenes])
    shape = torch.tensor([WORDS["shape"].index(s.shape) for s in scenes])
    reach = radius * torch.tensor([TRIANGLE if s.shape == "triangle" else 1.0 for s in scenes])
    canvas = torch.tensor([geometry.width, geometry.height], dtype=torch.float32)
    room = canvas / 2 - reach[:, None] - travel[:, None] / 2 * heading.abs() - _MARGIN  # [N, 2]
    middle = canvas / 2 + room.clamp(0, ASTRAY * scale) * (2 * torch.rand(count, 2, generator=generator) - 1)
    tints = [
        (torch.tensor(colours) + COLOUR_SPREAD * (2 * torch.rand(count, 3, generator=generator) - 1)).clamp(0, 1)
        for colours in ([PALETTE[s.colour] for s in scenes], [PALETTE[s.background] for s in scenes])
    ]
    periods = uniform([(low, high + 1) for low, high in (PERIODS[s.pitch] for s in scenes)]).floor()
    loud = uniform([LOUDNESS] * count)[:, None]
    sides = torch.tensor([[1.0, QUIET_SIDE] if s.side == "left" else [QUIET_SIDE, 1.0] for s in scenes])
    moved = travel[:, None] * heading
    return Clips(
        geometry,
        shape=shape,
        radius=radius,
        start=middle - moved / 2,
        velocity=moved / (geometry.frames - 1),
        colour=tints[0],
        ground=tints[1],
        hertz=periods * 40.0,
        loudness=loud * sides,
    )


def draw(clips: Clips, frames: range) -> Tensor:
    """Pictures in 0..1, with soft edges of one pixel: [N, 3, F, H, W]."""
    device = clips.radius.device
    times = torch.arange(frames.start, frames.stop, frames.step, device=device, dtype=torch.float32)
    centres = clips.start[:, None] + clips.velocity[:, None] * times[:, None]  # [N, F, 2]
    x = torch.arange(clips.geometry.width, device=device) + 0.5
    y = torch.arange(clips.geometry.height, device=device) + 0.5
    dx = x - centres[..., 0, None]  # [N, F, W]
    dy = y - centres[..., 1, None]  # [N, F, H]
    distance = _outside(clips, dx[:, :, None, :], dy[:, :, :, None])  # [N, F, H, W]
    cover = (0.5 - distance).clamp(0, 1)[:, None]
    colour, ground = (tint[:, :, None, None, None] for tint in (clips.colour, clips.ground))
    return ground + (colour - ground) * cover


def _outside(clips: Clips, dx: Tensor, dy: Tensor) -> Tensor:
    """Signed distance in pixels from the edge of each clip's shape, negative inside it."""
    radius = clips.radius[:, None, None, None]
    circle = (dx.square() + dy.square()).sqrt() - radius
    square = torch.maximum(dx.abs(), dy.abs()) - SQUARE * radius
    slope = dx.abs() * (math.sqrt(3) / 2) - dy / 2  # of the two upper sides
    triangle = torch.maximum(slope, dy) - TRIANGLE / 2 * radius
    kinds = clips.shape[:, None, None, None]
    return torch.where(kinds == 0, circle, torch.where(kinds == 1, square, triangle))


def sound(clips: Clips, latents: range) -> Tensor:
    """Stereo samples at 32 kHz of these audio latents: [N, 2, S]. A tone fades in and out with its clip."""
    samples = AUDIO_RATE_HZ // 40
    device = clips.hertz.device
    index = torch.arange(latents.start * samples, latents.stop * samples, device=device, dtype=torch.float64)
    seconds = index / AUDIO_RATE_HZ
    end = clips.geometry.audio_latents / 40
    fade = (torch.minimum(seconds, end - seconds) / _FADE_S).clamp(0, 1)
    wave = torch.sin(2 * math.pi * clips.hertz[:, None].double() * seconds) * fade
    return (wave[:, None] * clips.loudness[..., None]).float()
