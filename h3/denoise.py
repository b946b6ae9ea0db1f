"""The denoiser and the sampler together: one request, step by step."""

from dataclasses import dataclass

from torch import Tensor

from h3.model import Denoiser, Rope
from h3.sampler import Latents, Schedule, advance
from h3.sequence import Layout


@dataclass(frozen=True, slots=True)
class Denoising:
    """One request's constants through all steps."""

    denoiser: Denoiser
    layout: Layout
    schedule: Schedule
    text: Tensor  # refined rows [L, C]
    rope: Rope

    @classmethod
    def begin(cls, denoiser: Denoiser, states: Tensor, layout: Layout, schedule: Schedule) -> "Denoising":
        """What does not change from step to step, computed once. states [L, text_dim]"""
        positions = layout.positions().to(states.device)
        return cls(denoiser, layout, schedule, denoiser.refine(states), denoiser.rope(positions))

    def step(self, index: int, x: Latents) -> tuple[Latents, Latents]:
        """One model evaluation (0-based). Returns the clean estimate and the next latents, alike on every rank."""
        modulation = self.denoiser.modulation(self.schedule.timesteps(index).to(x.video.device))
        packed = self.denoiser.embed(self.text, x.audio, x.video)
        velocity = self.denoiser.velocity(packed, self.rope, self.layout.spans, modulation)
        return advance(self.schedule, index, x, velocity)
