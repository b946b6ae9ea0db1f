"""The denoiser and the sampler together: one request, step by step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from h3.model import Denoiser, Modulation, Rope
from h3.placement import KEPT_TIMESTEPS
from h3.sampler import Latents, Schedule, advance
from h3.sequence import Layout


@dataclass(frozen=True, slots=True)
class Denoising:
    """One request's constants through all steps."""

    denoiser: Denoiser
    layout: Layout
    schedule: Schedule
    text: Tensor  # refined rows [L, C]
    keyframes: Tensor  # rows that stay as they are [n, patch_dim] fp32; n may be 0
    rope: Rope
    modulation: "ScheduleModulation"

    @classmethod
    def begin(
        cls, denoiser: Denoiser, states: Tensor, layout: Layout, schedule: Schedule, keyframes: Tensor | None = None
    ) -> "Denoising":
        """What does not change from step to step, computed once. states [L, text_dim]"""
        if keyframes is None:
            keyframes = states.new_empty(0, denoiser.config.patch_dim, dtype=torch.float32)
        assert len(keyframes) == layout.keyframe_tokens, "the layout has room for other keyframes"
        return cls(
            denoiser,
            layout,
            schedule,
            text=denoiser.refine(states),
            keyframes=keyframes.to(states.device),
            rope=denoiser.rotary(layout.positions().to(states.device)),
            modulation=ScheduleModulation.of(
                denoiser, schedule.timesteps(keyframes=bool(layout.anchors)).to(states.device)
            ),
        )

    def step(self, index: int, x: Latents) -> tuple[Latents, Latents]:
        """One model evaluation (0-based). Returns the clean estimate and the next latents, alike on every rank."""
        velocity = self.denoiser.velocity(
            self.denoiser.embed(self.text, self.keyframes, x.audio, x.video),  # unnamed, so that ranks can free it
            self.rope,
            self.layout.spans,
            self.modulation.at(index),
        )
        return advance(self.schedule, index, x, velocity)


@dataclass(frozen=True, slots=True)
class ScheduleModulation:
    """AdaLN of a whole schedule, evaluated once and kept.

    Step by step, with the timesteps of one step together: in larger batches a GPU rounds some values otherwise, and
    over 50 blocks of bf16 that is 1.3e-2 of the velocity; so it is what diffusers computes, to the bit.
    """

    denoiser: Denoiser
    timesteps: Tensor  # [N, clocks]
    kept: list[Modulation]  # of each step; empty if they are too many to keep

    @classmethod
    def of(cls, denoiser: Denoiser, timesteps: Tensor) -> "ScheduleModulation":
        # At the true size a timestep takes 9.25 MiB.
        kept = timesteps if timesteps.numel() <= KEPT_TIMESTEPS else timesteps[:0]
        return cls(denoiser, timesteps, [denoiser.modulation(step) for step in kept])

    def at(self, step: int) -> Modulation:
        """Of a 0-based step, indexed by `Clock`."""
        return self.kept[step] if self.kept else self.denoiser.modulation(self.timesteps[step])
