"""Renders with a model on one device and in one process: what the worker's rank 0 does, without the worker."""

from dataclasses import dataclass
from pathlib import Path

import torch

from h3.checkpoint import DenoiserFiles
from h3.conditioning import encode
from h3.model import Denoiser
from h3.model_folder import ModelFolder
from h3.precision import Precision
from h3.sampler import draw_noise, make_schedule
from h3.sequence import Anchor, Geometry, unpatchify
from h3.text import TextEncoder, load_text_encoder
from h3.vae import AudioDecoder, VideoDecoder, VideoEncoder, load_audio_decoder, load_video_decoder, load_video_encoder
from tests.quality.drawn import write_video

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Studio:
    """All parts of a model."""

    denoiser: Denoiser
    text: TextEncoder
    video_encoder: VideoEncoder
    video_decoder: VideoDecoder
    audio_decoder: AudioDecoder

    @classmethod
    def open(cls, folder: ModelFolder, precision: Precision | None = None, device: torch.device = CPU) -> "Studio":
        return cls(
            DenoiserFiles.open(folder.transformer).load(device, precision),
            load_text_encoder(folder.text_encoder, folder.tokenizer, device),
            load_video_encoder(folder.video_vae, device),
            load_video_decoder(folder.video_vae, device),
            load_audio_decoder(folder.audio_vae, device),
        )

    @torch.inference_mode()
    def render(
        self,
        folder: Path,
        prompt: str,
        *,
        geometry: Geometry,
        steps: int,
        seed: int = 0,
        first_frame: Path | None = None,
    ) -> Path:
        """The finished video file."""
        device = self.denoiser.video_patch_proj.weight.device
        pictures = {} if first_frame is None else {Anchor.FIRST: first_frame}
        conditioning = encode(prompt, pictures, geometry, self.text, self.video_encoder)
        config, schedule = self.denoiser.config, make_schedule(steps)
        noise = draw_noise(geometry, config.in_channels, config.audio_in_channels, seed, len(pictures))
        denoising = conditioning.begin(self.denoiser, geometry, schedule, noise, device)
        latents = noise.latents.to(device)
        for step in range(steps):
            _, latents = denoising.step(step, latents)
        frames = torch.cat(list(self.video_decoder.clips(unpatchify(latents.video, geometry))))
        return write_video(folder, geometry, frames.numpy(), self.audio_decoder.decode(latents.audio).numpy())
