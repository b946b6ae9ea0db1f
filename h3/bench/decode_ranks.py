"""Ranks that decode and encode a clip at a time, as a render does, or all clips at once, as diffusers' class does."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3
from torch import Tensor

from h3.device import synchronize, take_peak
from h3.model_folder import ModelFolder
from h3.mp4 import SegmentWriter
from h3.parallel.decode import decode_rounds
from h3.sequence import AUDIO_RATE_HZ, FPS, Geometry
from h3.vae import VIDEO_DECODER, VideoDecoder, load_video_vae, to_pixels
from h3.vae_files import is_kept_in_fp32
from worker.mgpu import MGPURunner


@dataclass(frozen=True, slots=True)
class DecodeAll:
    """Ask for a video of random latents; answered with Decoded. A second time nothing has to be prepared."""

    geometry: Geometry
    as_diffusers: bool  # all clips, then their encoding; on one rank


@dataclass(frozen=True, slots=True)
class Decoded:
    """How long it took rank 0."""

    first_segment_s: float
    seconds: float  # until all are encoded
    decoding_s: float  # of it, with nothing encoded meanwhile
    peak_bytes: int  # of GPU memory


class DecodeRanks(MGPURunner):
    """The video decoder alone, with a checkpoint's weights or random ones of the published size."""

    @torch.inference_mode()
    def setup(self, *, model: Path | None) -> None:
        self._vae = untrained_decoder(self.device) if model is None else load(model, self.device)
        self._tiled_alone = self._vae._decode_clip
        self._ours = VideoDecoder(self._vae)
        self._tiled_together = self._vae._decode_clip

    @torch.inference_mode()
    def __call__(self, *, ask: DecodeAll) -> Iterator[Decoded]:
        self._vae._decode_clip = self._tiled_alone if ask.as_diffusers else self._tiled_together
        # Two clips, so that kernels are loaded and memory is there.
        self._time(replace(ask, geometry=Geometry(ask.geometry.width, ask.geometry.height, 39)), encodes=False)
        take_peak(self.device)
        encoded = self._time(ask, encodes=True)
        plain = self._time(ask, encodes=False)
        if self.rank == 0:
            yield Decoded(encoded[0], encoded[-1], plain[-1], take_peak(self.device))

    def _time(self, ask: DecodeAll, *, encodes: bool) -> list[float]:
        """Seconds until each clip was there; on rank 0."""
        geometry = ask.geometry
        shape = (self._ours.channels, geometry.latent_frames, geometry.latent_height, geometry.latent_width)
        latents = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.device)
        with tempfile.TemporaryDirectory() as folder:
            synchronize(self.device)
            begun = time.perf_counter()
            writer = SegmentWriter(
                Path(folder),
                width=geometry.width,
                height=geometry.height,
                clip_lengths=geometry.clip_frames,
                audio=np.zeros((2, geometry.frames * AUDIO_RATE_HZ // FPS), np.float32),
            )
            seconds = []
            for clip in self._clips(ask, latents):
                if encodes:
                    writer.write(clip.numpy())
                seconds.append(time.perf_counter() - begun)
        return seconds or [0.0]

    def _clips(self, ask: DecodeAll, latents: Tensor) -> Iterator[Tensor]:
        """On rank 0, as uint8 on the CPU."""
        if ask.as_diffusers:
            yield from self._as_diffusers(latents, ask.geometry)
            return
        for clips in decode_rounds(self._ours, latents, 0, self.groups.vae_group):
            yield from clips

    def _as_diffusers(self, latents: Tensor, geometry: Geometry) -> Iterator[Tensor]:
        video = to_pixels(self._vae.decode(latents[None]).sample[0].permute(1, 2, 3, 0))
        yield from video.split(geometry.clip_frames)


def load(model: Path, device: torch.device) -> AutoencoderKLMiniMaxH3:
    """Raises CheckpointError."""
    return load_video_vae(ModelFolder.below(model).video_vae, device, parts=VIDEO_DECODER)


def untrained_decoder(device: torch.device) -> AutoencoderKLMiniMaxH3:
    """Of the published size, with torch's random weights, made on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        vae = AutoencoderKLMiniMaxH3(latents_mean=[0.0] * 24, latents_std=[1.0] * 24)
    del vae.encoder, vae.quant_conv
    for name, parameter in vae.named_parameters():
        if not is_kept_in_fp32(name):
            parameter.data = parameter.data.bfloat16()
    return vae.eval().requires_grad_(False)
