"""From denoised latents to pictures and sound, with the diffusers classes for both H3 autoencoders.

The video decoder works in clips of 17 frames that are final as soon as they are decoded: clip i reads latent frames
5i to 5i + 6 and also gives 5 frames that the next clip is cross-faded with (or that end the video). So a video
streams exactly, and the only state between clips is those 5 frames.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from torch import Tensor

from h3.model import ISLAND_DTYPE, MODEL_DTYPE
from h3.sequence import CLIP_FRAMES, CLIP_LATENTS

_WINDOW = CLIP_LATENTS + 2  # latent frames that a clip reads
_PIXEL_MEAN = torch.tensor([0.485, 0.456, 0.406])  # ImageNet, the space that the decoder speaks
_PIXEL_STD = torch.tensor([0.229, 0.224, 0.225])


class VideoDecoder:
    """Clip by clip, on one device. Latents are the denoiser's, normalised: [C, F, Hl, Wl] fp32."""

    def __init__(self, vae: AutoencoderKLMiniMaxH3) -> None:
        self._vae = vae
        self._mean = torch.tensor(vae.config.latents_mean, device=vae.device)[:, None, None, None]
        self._std = torch.tensor(vae.config.latents_std, device=vae.device)[:, None, None, None]

    def clips(self, latents: Tensor, first: int = 0) -> Iterator[Tensor]:
        """The video in order from clip `first`, as uint8 [F, H, W, 3] on the CPU: 17 frames each, 22 in the last."""
        count = latents.shape[1] // CLIP_LATENTS
        # The one before is decoded too, for the frames that the first is cross-faded with.
        tail = self._decode(latents, first - 1)[CLIP_FRAMES:] if 0 < first < count else None
        for index in range(first, count):
            window = self._decode(latents, index)
            clip, next_tail = window[:CLIP_FRAMES], window[CLIP_FRAMES:]
            if tail is not None:
                clip = torch.cat([cross_fade(tail, clip[: len(tail)]), clip[len(tail) :]])
            tail = next_tail
            yield to_pixels(clip if index < count - 1 else torch.cat([clip, tail]))

    def picture(self, latents: Tensor, longest_side: int) -> Tensor:
        """One small frame from the middle of the video: uint8 [h, w, 3] on the CPU."""
        middle = self._decode(latents, latents.shape[1] // CLIP_LATENTS // 2)[CLIP_FRAMES // 2]
        scale = min(1.0, longest_side / max(middle.shape[:2]))
        size = [max(1, round(side * scale)) for side in middle.shape[:2]]
        small = F.interpolate(middle.permute(2, 0, 1)[None].float(), size, mode="bilinear", antialias=True)
        return to_pixels(small[0].permute(1, 2, 0))

    def _decode(self, latents: Tensor, index: int) -> Tensor:
        """Clip `index` and the 5 frames after it, before any cross-fade: [22, H, W, 3] in decoder space."""
        window = latents[:, index * CLIP_LATENTS : index * CLIP_LATENTS + _WINDOW].to(self._mean.device)
        sample: Tensor = self._vae.decode((window * self._std + self._mean)[None]).sample
        return sample[0].permute(1, 2, 3, 0)


def cross_fade(old: Tensor, new: Tensor) -> Tensor:
    """Linear blend along the first axis, beginning wholly at `old`. Same shapes; in their dtype, as diffusers does."""
    weight = torch.arange(len(new), device=new.device, dtype=new.dtype).div(len(new)).view(-1, 1, 1, 1)
    return old * (1 - weight) + new * weight


def to_pixels(frames: Tensor) -> Tensor:
    """Decoder space [..., 3] to uint8 RGB on the CPU."""
    mean, std = _PIXEL_MEAN.to(frames.device), _PIXEL_STD.to(frames.device)
    return (frames.float() * std + mean).clamp(0, 1).mul(255).round().to(torch.uint8).cpu()


class AudioDecoder:
    """The whole sound at once, fp32 throughout: in bf16 it is audibly wrong."""

    def __init__(self, vae: AutoencoderKLMiniMaxH3Audio) -> None:
        self._vae = vae
        self._mean = torch.tensor(vae.config.latents_mean, device=vae.device)[:, None]
        self._std = torch.tensor(vae.config.latents_std, device=vae.device)[:, None]

    def decode(self, rows: Tensor) -> Tensor:
        """rows [2A, C] fp32, left channel first. Returns stereo samples at 32 kHz: [2, 800A] fp32 on the CPU."""
        latents = rows.to(self._mean.device).unflatten(0, (2, -1)).transpose(1, 2)  # [2, C, A]
        wave: Tensor = self._vae.decode(latents * self._std + self._mean).sample
        return wave[:, 0].cpu()


def load_video_decoder(folder: Path, device: torch.device) -> VideoDecoder:
    """Load the official folder `video_vae`; what the class pins to fp32 stays so."""
    vae = AutoencoderKLMiniMaxH3.from_pretrained(folder, torch_dtype=MODEL_DTYPE, local_files_only=True)
    return VideoDecoder(vae.to(device).eval().requires_grad_(False))


def load_audio_decoder(folder: Path, device: torch.device) -> AudioDecoder:
    """Load the official folder `audio_vae`."""
    vae = AutoencoderKLMiniMaxH3Audio.from_pretrained(folder, torch_dtype=ISLAND_DTYPE, local_files_only=True)
    return AudioDecoder(vae.to(device).eval().requires_grad_(False))
