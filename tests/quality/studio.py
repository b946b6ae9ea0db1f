"""Renders with a model on one device and in one process: what the worker's rank 0 does, in any precision."""

from dataclasses import dataclass
from pathlib import Path

import torch

from h3.checkpoint import DenoiserFiles
from h3.conditioning import encode
from h3.model import Denoiser
from h3.model_folder import ModelFolder
from h3.precision import Precision
from h3.sampler import draw_noise, make_schedule
from h3.sequence import unpatchify
from h3.text import TextEncoder, load_text_encoder
from h3.vae import AudioDecoder, VideoDecoder, VideoEncoder, load_audio_decoder, load_video_decoder, load_video_encoder
from tests.quality.drawn import SIZE, STEPS, write_video


@dataclass(frozen=True)
class Studio:
    """All parts of a model."""

    denoiser: Denoiser
    text: TextEncoder
    video_encoder: VideoEncoder
    video_decoder: VideoDecoder
    audio_decoder: AudioDecoder

    @classmethod
    def open(cls, folder: ModelFolder, precision: Precision, device: torch.device) -> "Studio":
        return cls(
            DenoiserFiles.open(folder.transformer).load(device, precision),
            load_text_encoder(folder.text_encoder, folder.tokenizer, device),
            load_video_encoder(folder.video_vae, device),
            load_video_decoder(folder.video_vae, device),
            load_audio_decoder(folder.audio_vae, device),
        )

    @torch.inference_mode()
    def render(self, folder: Path, prompt: str, seed: int) -> Path:
        """The finished video file."""
        device = self.denoiser.video_patch_proj.weight.device
        conditioning = encode(prompt, {}, SIZE, self.text, self.video_encoder)
        config, schedule = self.denoiser.config, make_schedule(STEPS)
        noise = draw_noise(SIZE, config.in_channels, config.audio_in_channels, seed, 0)
        denoising = conditioning.begin(self.denoiser, SIZE, schedule, noise, device)
        latents = noise.latents.to(device)
        for step in range(STEPS):
            _, latents = denoising.step(step, latents)
        frames = torch.cat(list(self.video_decoder.clips(unpatchify(latents.video, SIZE))))
        return write_video(folder, SIZE, frames.numpy(), self.audio_decoder.decode(latents.audio).numpy())
