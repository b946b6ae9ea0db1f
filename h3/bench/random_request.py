"""A request of random text and noise, the same for whoever computes it."""

import torch

from h3.bench.turns import TEXT_TOKENS
from h3.denoise import Denoising
from h3.model import Denoiser
from h3.sampler import Latents, draw_noise, make_schedule
from h3.sequence import Geometry, Layout


def begin_random(model: Denoiser, geometry: Geometry, steps: int, device: torch.device) -> tuple[Denoising, Latents]:
    """Ready for its steps, with the latents that they begin with, on the device."""
    states = torch.randn(TEXT_TOKENS, model.config.text_dim, generator=torch.Generator().manual_seed(0)).to(device)
    denoising = Denoising.begin(model, states, Layout(geometry, TEXT_TOKENS), make_schedule(steps))
    noise = draw_noise(geometry, model.config.in_channels, model.config.audio_in_channels, seed=0)
    return denoising, noise.latents.to(device)
