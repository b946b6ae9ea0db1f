"""The flow-matching schedule, its Euler update and the initial noise. Runs no model.

Video and audio share one grid of N + 1 points and differ in their shift; N steps are N model evaluations.
All arithmetic is fp32. Timestep t = 1 - sigma: 0 is pure noise, 1 is clean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from h3.model import Velocity
from h3.sequence import Geometry, patchify

VIDEO_SHIFT = 12.0
AUDIO_SHIFT = 3.0
KEYFRAME_TIME = 0.999  # keyframes are held just short of clean


@dataclass(frozen=True, slots=True)
class Latents:
    """Token rows being denoised, fp32."""

    video: Tensor  # [V, patch_dim]
    audio: Tensor  # [2A, audio channels], left channel first

    def to(self, device: torch.device) -> "Latents":
        return Latents(self.video.to(device), self.audio.to(device))

    def checksum(self) -> int:
        """Of the bits and their places, cheap on any device: other latents will have another one."""
        words = torch.cat([part.contiguous().view(torch.int32).flatten() for part in (self.video, self.audio)]).long()
        places = torch.arange(1, 2 * len(words), 2, device=words.device)  # odd, so that each is a step to another sum
        return int((words * places).sum())  # modulo 2 ** 64


@dataclass(frozen=True, slots=True)
class Schedule:
    """Noise levels from 1 to 0, one more than there are steps."""

    video: Tensor  # [N + 1]
    audio: Tensor  # [N + 1]

    @property
    def steps(self) -> int:
        return len(self.video) - 1

    def timesteps(self, *, keyframes: bool = False) -> Tensor:
        """Of every step, indexed by `Clock`: [N, 2], or [N, 3] for a request with keyframes."""
        video, audio = 1 - self.video[:-1], 1 - self.audio[:-1]
        clocks = [video, audio, *([video.clamp(min=KEYFRAME_TIME)] if keyframes else [])]
        return torch.stack(clocks, dim=1)


def make_schedule(steps: int) -> Schedule:
    """The shifted linear grid for `steps` model evaluations."""
    grid = torch.linspace(1, 0, steps + 1, dtype=torch.float32)
    return Schedule(video=_shift(grid, VIDEO_SHIFT), audio=_shift(grid, AUDIO_SHIFT))


def _shift(grid: Tensor, shift: float) -> Tensor:
    return shift * grid / (1 + (shift - 1) * grid)


@dataclass(frozen=True, slots=True)
class Noise:
    """Every random number of a render."""

    keyframes: tuple[Tensor, ...]  # each [C, 1, Hl, Wl]
    latents: Latents


def draw_noise(geometry: Geometry, video_channels: int, audio_channels: int, seed: int, keyframes: int = 0) -> Noise:
    """Pure noise for a request, drawn on the CPU from one generator: keyframes, then video latents, then audio rows.

    The draw does not depend on device or world size. The order is the diffusers pipeline's.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    picture = (geometry.latent_height, geometry.latent_width)
    frames = [torch.randn((video_channels, 1, *picture), generator=generator) for _ in range(keyframes)]
    video = torch.randn((video_channels, geometry.latent_frames, *picture), generator=generator)
    audio = torch.randn((2 * geometry.audio_latents, audio_channels), generator=generator)
    return Noise(tuple(frames), Latents(video=patchify(video), audio=audio))


def noise_keyframes(clean: Sequence[Tensor], noise: Sequence[Tensor]) -> Tensor:
    """Rows of all keyframes as the model sees them at every step. [C, 1, Hl, Wl] each; returns [rows, patch_dim]."""
    time = torch.tensor(KEYFRAME_TIME)  # fp32 from here, so that 1 - t has the rounding that the model was given
    mixed = [time * x + (1 - time) * eps for x, eps in zip(clean, noise, strict=True)]
    return torch.cat([patchify(frame) for frame in mixed])


def advance(schedule: Schedule, step: int, x: Latents, velocity: Velocity) -> tuple[Latents, Latents]:
    """One Euler step from noise level `step` (0-based). Returns the clean estimate and the next latents."""
    video = _advance(x.video, velocity.video, schedule.video[step], schedule.video[step + 1])
    audio = _advance(x.audio, velocity.audio, schedule.audio[step], schedule.audio[step + 1])
    return Latents(video[0], audio[0]), Latents(video[1], audio[1])


def _advance(x: Tensor, velocity: Tensor, sigma: Tensor, sigma_next: Tensor) -> tuple[Tensor, Tensor]:
    """The clean estimate x0, and x moved towards it. The last step, to sigma 0, gives x0 itself."""
    # 1 - t and not sigma: t is the fp32 number that the model saw. The velocity is data-ward, hence the plus.
    clean = x + (1 - (1 - sigma)) * velocity
    ratio = sigma_next / sigma
    return clean, ratio * x + (1 - ratio) * clean
