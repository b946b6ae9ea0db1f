"""The packed sequence: which rows a request has, their order, positions and modulation.

One request is one sequence `[text L | keyframes | audio 2A | video V]`, attended over in full, without padding or
masks. A keyframe appears twice: as a vision block among the text rows, and as latent rows that stay as they are.
Geometry: 24 fps, 17n + 5 frames make 5n + 2 latent frames; a latent covers 16 x 16 pixels, a video token 2 x 2
latents; audio has 40 latents a second for each of two channels.
Source: MiniMax-H3's published configuration and the diffusers pipeline's layout, restated.
"""

import math
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from itertools import accumulate, cycle, pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from h3.errors import ConfigError
from h3.partition import clip

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
    KEYFRAME = 2


class Anchor(StrEnum):
    """Which end of the video a keyframe fixes."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one modality at one timestep: the unit of modulation."""

    start: int
    stop: int
    modality: Modality
    clock: Clock
    is_target: bool = False  # rows that the render is made of; the heads see no others

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


def clip_spans(spans: list[Span], owned: slice) -> list[Span]:
    """The parts of `spans` that lie in `owned`, counted from its start. Spans outside it vanish."""
    clipped = [(span, clip(span.rows, owned)) for span in spans]
    return [replace(span, start=rows.start, stop=rows.stop) for span, rows in clipped if rows.start < rows.stop]


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

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of WIDTHxHEIGHTxFRAMES. Raises ConfigError."""
        try:
            width, height, frames = map(int, text.split("x"))
        except ValueError as exc:
            raise ConfigError(f"{text!r} is not WIDTHxHEIGHTxFRAMES, as in 864x480x141") from exc
        return cls(width, height, frames)

    @classmethod
    def of_latents(cls, frames: int, height: int, width: int) -> Self:
        """The video of so many latent frames of that size. Raises ConfigError if there is none."""
        clips, rest = divmod(frames - 2, CLIP_LATENTS)
        if rest:
            raise ConfigError(f"{frames} latent frames: must be {CLIP_LATENTS}n + 2, n >= 1")
        return cls(width * PIXELS_PER_LATENT, height * PIXELS_PER_LATENT, clips * CLIP_FRAMES + TAIL_FRAMES)

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
    """The rows of one request. Raises ConfigError if the text rows do not hold what is said of them."""

    geometry: Geometry
    text_tokens: int
    vision: tuple[range, ...] = ()  # text rows that are a keyframe's vision block; they count as video
    anchors: tuple[Anchor, ...] = ()  # of the keyframes, in the order of their rows

    def __post_init__(self) -> None:
        edges = [edge for block in self.vision for edge in (block.start, block.stop)]
        if edges != sorted(edges) or any(not 0 <= edge <= self.text_tokens for edge in edges):
            raise ConfigError(f"vision blocks {list(self.vision)} do not lie in order in {self.text_tokens} text rows")

    @property
    def keyframe_tokens(self) -> int:
        return len(self.anchors) * self.geometry.tokens_per_frame

    @property
    def tokens(self) -> int:
        return self.text_tokens + self.keyframe_tokens + 2 * self.geometry.audio_latents + self.geometry.video_tokens

    @property
    def spans(self) -> list[Span]:
        """In row order, none of them empty."""
        keyframes = self.text_tokens
        audio = keyframes + self.keyframe_tokens
        video = audio + 2 * self.geometry.audio_latents
        spans = [
            *self._text_spans(),
            Span(keyframes, audio, Modality.VIDEO, Clock.KEYFRAME),
            Span(audio, video, Modality.AUDIO, Clock.AUDIO, is_target=True),
            Span(video, self.tokens, Modality.VIDEO, Clock.VIDEO, is_target=True),
        ]
        return [span for span in spans if span.start < span.stop]

    def _text_spans(self) -> list[Span]:
        edges = [0, *(edge for block in self.vision for edge in (block.start, block.stop)), self.text_tokens]
        modalities = cycle((Modality.TEXT, Modality.VIDEO))
        return [Span(*ends, modality, Clock.VIDEO) for ends, modality in zip(pairwise(edges), modalities, strict=False)]

    def positions(self) -> Tensor:
        """Rotary coordinates (t, h, w) of every row: [T, 3] fp32, built in fp64."""
        parts = [self._text_positions(), *self._keyframe_positions(), self._audio_positions(), self._video_positions()]
        return torch.cat(parts).float()

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

    def _keyframe_positions(self) -> list[Tensor]:
        last = _last_frame_time(self.geometry.latent_frames)
        return [self._frame_positions([0.0 if anchor is Anchor.FIRST else last]) for anchor in self.anchors]

    def _video_positions(self) -> Tensor:
        return self._frame_positions(_latent_times(self.geometry.latent_frames))

    def _frame_positions(self, times: list[float]) -> Tensor:
        """Whole latent frames at these times after the text: [times x tokens_per_frame, 3]."""
        axes = (
            torch.tensor(times, dtype=torch.float64) + self.text_tokens,
            _axis(self.geometry.latent_height, self.geometry),
            _axis(self.geometry.latent_width, self.geometry),
        )
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 2)


def _latent_spans(latent_frames: int) -> list[float]:
    """How long each latent frame lasts, in rotary units."""
    return [_UNITS_PER_FRAME * _FRAMES_PER_LATENT[i % CLIP_LATENTS] for i in range(latent_frames)]


def _latent_times(latent_frames: int) -> list[float]:
    """Start of each latent frame, summed in order as the reference does."""
    return list(accumulate(_latent_spans(latent_frames - 1), initial=0.0))


def _last_frame_time(latent_frames: int) -> float:
    """Where the last pixel frame begins."""
    # numpy's pairwise sum, as the reference has it here and nowhere else; it differs in the last bit.
    return float(np.sum(_latent_spans(latent_frames))) - _UNITS_PER_FRAME


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
