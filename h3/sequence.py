"""The packed sequence: which rows a request has, their order, positions and modulation.

One request is one sequence `[text L | audio 2A | video V]`, attended over in full, without padding or masks.
Geometry: 24 fps, 17n + 5 frames make 5n + 2 latent frames; a latent covers 16 x 16 pixels, a video token 2 x 2
latents; audio has 40 latents a second for each of two channels.
Source: MiniMax-H3's published configuration and the diffusers pipeline's layout, restated.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate

import torch
from torch import Tensor

from h3.errors import ConfigError

FPS = 24
AUDIO_RATE_HZ = 32_000
AUDIO_LATENTS_PER_SECOND = 40
CLIP_FRAMES = 17  # one decoded clip
CLIP_LATENTS = 5
TAIL_FRAMES = 5  # what the last clip has beyond CLIP_FRAMES, and the length of the cross-fade
PIXELS_PER_LATENT = 16
LATENTS_PER_TOKEN = 2  # per side

# Rotary time runs at 40 units a second, the rate of the audio latents; a pixel frame is 5/3 units.
_UNITS_PER_FRAME = AUDIO_LATENTS_PER_SECOND / FPS
_FRAMES_PER_LATENT = (1, 4, 4, 4, 4)  # of a clip's five latents
_GRID = 32.0  # spatial coordinates span [0, 32) on a square canvas


class Modality(IntEnum):
    """Row of the AdaLN table."""

    VIDEO = 0
    TEXT = 1
    AUDIO = 2


class Clock(IntEnum):
    """Which of a step's timesteps a row is at."""

    VIDEO = 0
    AUDIO = 1


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one modality at one timestep: the unit of modulation."""

    start: int
    stop: int
    modality: Modality
    clock: Clock

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


def clip_spans(spans: list[Span], owned: slice) -> list[Span]:
    """The parts of `spans` that lie in `owned`, counted from its start. Spans outside it vanish."""
    return [
        Span(
            max(s.start, owned.start) - owned.start,
            min(s.stop, owned.stop) - owned.start,
            s.modality,
            s.clock,
        )
        for s in spans
        if s.start < owned.stop and s.stop > owned.start
    ]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of the latents that a width, height and frame count give. Raises ConfigError if the model has none."""

    width: int  # pixels, a multiple of 32
    height: int
    frames: int  # 17n + 5, n >= 1

    def __post_init__(self) -> None:
        side = PIXELS_PER_LATENT * LATENTS_PER_TOKEN
        if min(self.width, self.height) < side or self.width % side or self.height % side:
            raise ConfigError(f"{self.width}x{self.height} pixels: both sides must be multiples of {side}")
        if self.clips < 1 or self.frames % CLIP_FRAMES != TAIL_FRAMES:
            raise ConfigError(f"{self.frames} frames: must be {CLIP_FRAMES}n + {TAIL_FRAMES}, n >= 1")

    @property
    def clips(self) -> int:
        return (self.frames - TAIL_FRAMES) // CLIP_FRAMES

    @property
    def latent_frames(self) -> int:
        return CLIP_LATENTS * self.clips + 2

    @property
    def latent_height(self) -> int:
        return self.height // PIXELS_PER_LATENT

    @property
    def latent_width(self) -> int:
        return self.width // PIXELS_PER_LATENT

    @property
    def audio_latents(self) -> int:
        """Per stereo channel."""
        return round(self.frames * AUDIO_LATENTS_PER_SECOND / FPS)

    @property
    def tokens_per_frame(self) -> int:
        return (self.latent_height // LATENTS_PER_TOKEN) * (self.latent_width // LATENTS_PER_TOKEN)

    @property
    def video_tokens(self) -> int:
        return self.latent_frames * self.tokens_per_frame

    @property
    def clip_frames(self) -> list[int]:
        """Frames of each decoded clip; the last one has the tail too."""
        return [CLIP_FRAMES] * (self.clips - 1) + [CLIP_FRAMES + TAIL_FRAMES]


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of one text-to-video request."""

    geometry: Geometry
    text_tokens: int

    @property
    def tokens(self) -> int:
        return self.text_tokens + 2 * self.geometry.audio_latents + self.geometry.video_tokens

    @property
    def spans(self) -> list[Span]:
        audio = self.text_tokens
        video = audio + 2 * self.geometry.audio_latents
        return [
            Span(0, audio, Modality.TEXT, Clock.VIDEO),
            Span(audio, video, Modality.AUDIO, Clock.AUDIO),
            Span(video, self.tokens, Modality.VIDEO, Clock.VIDEO),
        ]

    def positions(self) -> Tensor:
        """Rotary coordinates (t, h, w) of every row: [T, 3] fp32, built in fp64."""
        return torch.cat([self._text_positions(), self._audio_positions(), self._video_positions()]).float()

    def _text_positions(self) -> Tensor:
        rows = torch.zeros(self.text_tokens, 3, dtype=torch.float64)
        rows[:, 0] = torch.arange(self.text_tokens, dtype=torch.float64)
        return rows

    def _audio_positions(self) -> Tensor:
        """Channel by channel; the left channel sits at the first column of the picture, the right at the last."""
        columns = _axis(self.geometry.latent_width, self.geometry)
        count = self.geometry.audio_latents
        rows = torch.zeros(2, count, 3, dtype=torch.float64)
        rows[:, :, 0] = self.text_tokens + torch.arange(count, dtype=torch.float64)
        rows[0, :, 2], rows[1, :, 2] = columns[0], columns[-1]
        return rows.flatten(0, 1)

    def _video_positions(self) -> Tensor:
        times = torch.tensor(_latent_times(self.geometry.latent_frames), dtype=torch.float64) + self.text_tokens
        rows = _axis(self.geometry.latent_height, self.geometry)
        columns = _axis(self.geometry.latent_width, self.geometry)
        return torch.stack(torch.meshgrid(times, rows, columns, indexing="ij"), dim=-1).flatten(0, 2)


def _latent_times(latent_frames: int) -> list[float]:
    """Start of each latent frame in rotary units, summed in order as the reference does."""
    spans = [_UNITS_PER_FRAME * _FRAMES_PER_LATENT[i % CLIP_LATENTS] for i in range(latent_frames - 1)]
    return list(accumulate(spans, initial=0.0))


def _axis(latents: int, geometry: Geometry) -> Tensor:
    """Coordinates of the tokens along a side of `latents`: centred, the same step on both sides. [latents / 2]"""
    extent = latents / math.sqrt(geometry.latent_height * geometry.latent_width)
    tokens = latents // LATENTS_PER_TOKEN
    index = torch.arange(tokens, dtype=torch.float64)
    return _GRID * ((1 - extent) / 2 + index * extent / tokens)


def patchify(latents: Tensor) -> Tensor:
    """Video latents to token rows, frame by frame, row by row.

    latents  [C, F, Hl, Wl]
    returns  [V, C * 4]; feature c * 4 + dy * 2 + dx
    """
    channels, frames, height, width = latents.shape
    blocks = latents.reshape(channels, frames, height // 2, 2, width // 2, 2)
    return blocks.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * 4)


def unpatchify(rows: Tensor, geometry: Geometry) -> Tensor:
    """The inverse of `patchify`: [V, C * 4] to [C, F, Hl, Wl]."""
    height, width = geometry.latent_height, geometry.latent_width
    blocks = rows.reshape(geometry.latent_frames, height // 2, width // 2, -1, 2, 2)
    return blocks.permute(3, 0, 1, 4, 2, 5).reshape(-1, geometry.latent_frames, height, width)
