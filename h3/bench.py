"""Measures the denoise step of this machine's model. Prints JSON; knows no queue and no controller."""

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from h3.checkpoint import load_denoiser
from h3.denoise import Denoising
from h3.model_folder import ModelFolder
from h3.provenance import describe_device
from h3.sampler import draw_noise, make_schedule
from h3.sequence import Geometry, Layout

TEXT_TOKENS = 300
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Seconds of one denoise step on one device."""

    device: str
    torch: str
    width: int
    height: int
    frames: int
    tokens: int
    steps: int
    median_s: float
    fastest_s: float


@torch.inference_mode()
def time_steps(checkpoint: Path, geometry: Geometry, steps: int, device: torch.device) -> StepTiming:
    """Time `steps` model evaluations after a warm-up, with random text states."""
    denoiser = load_denoiser(ModelFolder.below(checkpoint).transformer, device)
    layout = Layout(geometry, TEXT_TOKENS)
    states = torch.randn(TEXT_TOKENS, denoiser.config.text_dim, device=device)
    denoising = Denoising.begin(denoiser, states, layout, make_schedule(WARM_UP + steps))
    latents = draw_noise(geometry, denoiser.config.in_channels, denoiser.config.audio_in_channels, seed=0).latents.to(
        device
    )
    seconds = []
    for step in range(WARM_UP + steps):
        begun = time.perf_counter()
        _, latents = denoising.step(step, latents)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    measured = seconds[WARM_UP:]
    return StepTiming(
        device=describe_device(device),
        torch=torch.__version__,
        **asdict(geometry),
        tokens=layout.tokens,
        steps=steps,
        median_s=statistics.median(measured),
        fastest_s=min(measured),
    )
