"""The denoiser in training: the project's own model on batches of packed sequences, in its own flow matching.

A batch lies in a second axis: rows [T, B, C]. All requests of a batch have the same layout, so what the model does by
rows (spans, positions, modulation) stays as it is; attention alone is told of the batch, and made so that gradients
pass: the model's own saves memory by writing into what it reads.

Letters: T rows, B requests, C model dim, K clocks, L text tokens, V video rows, A audio latents of a channel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from h3.config import DenoiserConfig
from h3.model import Attention, Denoiser, Mlp, Modulation, Rope, Velocity, rotate
from h3.sampler import AUDIO_SHIFT, KEYFRAME_TIME, VIDEO_SHIFT
from h3.sequence import Layout
from tools.demo_model import audio_vae, video_vae
from tools.demo_model.trainer import Plan, Trainer
from tools.demo_model.words import TEXT_DIM

DENOISER = DenoiserConfig(
    hidden_size=256,
    num_layers=6,
    num_refiner_layers=1,
    num_attention_heads=4,
    attention_head_dim=64,
    ffn_dim=512,
    in_channels=video_vae.LATENT_CHANNELS,
    audio_in_channels=audio_vae.LATENT_CHANNELS,
    text_dim=TEXT_DIM,
    freq_dim=64,
    time_embed_hidden_dim=128,
    time_embed_dim=32,
    rope_freq_dim=8,
)


def build_denoiser(device: torch.device, dtype: torch.dtype) -> Denoiser:
    """Untrained: every block adds nothing yet, and the velocity is nought."""
    model = Denoiser(DENOISER, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adaln_proj" in name or name.startswith(("final_layer.video_out", "final_layer.audio_out")):
                parameter.zero_()
    return make_trainable(model).to(device)


def make_trainable(model: Denoiser) -> Denoiser:
    """Let attention and MLP keep what the backward pass needs, and let attention see a batch."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.forward = partial(_attend, module)
        elif isinstance(module, Mlp):
            module.forward = partial(_expand, module)
    return model


def _attend(attention: Attention, x: Tensor, rope: Rope | None = None) -> Tensor:
    """[T, B, C]"""
    q, k, v = attention.qkv_proj(x).unflatten(-1, (3, attention.heads, attention.head_dim)).unbind(-3)  # [T, B, H, D]
    q, k = attention.q_norm(q), attention.k_norm(k)
    if rope is not None:
        wide = Rope(rope.cos[:, None], rope.sin[:, None])  # the same for all of a batch
        q, k = rotate(q, wide), rotate(k, wide)
    rows = F.scaled_dot_product_attention(*(part.permute(1, 2, 0, 3) for part in (q, k, v)))  # [B, H, T, D]
    return attention.out_proj(rows.permute(2, 0, 1, 3).flatten(2))


def _expand(mlp: Mlp, x: Tensor) -> Tensor:
    gate, value = mlp.fc1(x).chunk(2, dim=-1)
    return mlp.fc2(F.silu(gate) * value)


@dataclass(frozen=True, slots=True)
class Texts:
    """Some clips as their captions say them: all of the same length."""

    layout: Layout
    states: Tensor  # [N, L, text_dim]
    clips: Tensor  # [N], which clips these are

    def to(self, device: torch.device) -> "Texts":
        return Texts(self.layout, self.states.to(device), self.clips.to(device))


@dataclass(frozen=True, slots=True)
class Examples:
    """Normalised latents of all clips, as rows, and what is said of them."""

    video: Tensor  # [N, V, patch_dim]
    audio: Tensor  # [N, 2A, channels]
    keyframe_noise: Tensor  # [patch_dim], how far a sampled keyframe lies from the mean
    texts: Sequence[Texts]  # of each template, without and with a keyframe


def batched_modulation(model: Denoiser, timesteps: Tensor) -> Modulation:
    """AdaLN where each request of a batch has its own clocks. timesteps [K, B]"""
    flat = model.modulation(timesteps.flatten())
    clocks = timesteps.shape[0]

    def by_clock(values: Tensor) -> Tensor:
        return values.unflatten(0, (clocks, -1)).movedim(1, -2)  # the batch just before the channels

    return Modulation([by_clock(block) for block in flat.blocks], by_clock(flat.final))


def velocity(
    model: Denoiser,
    layout: Layout,
    rope: Rope,
    states: Tensor,
    noisy: Velocity,
    timesteps: Tensor,
    keyframes: Tensor,
) -> Velocity:
    """Of a batch. states [L, B, text_dim]; noisy [V, B, patch_dim] and [2A, B, channels]; timesteps [K, B]; keyframes
    [R, B, patch_dim]"""
    x = model.embed(model.refine(states), keyframes, noisy.audio, noisy.video)
    return model.velocity(x, rope, layout.spans, batched_modulation(model, timesteps))


def shift(sigma: Tensor, by: float) -> Tensor:
    return by * sigma / (1 + (by - 1) * sigma)


def train(model: Denoiser, examples: Examples, plan: Plan, batch: int, file: Path, deadline: float) -> bool:
    """Returns whether it is done."""
    trainer = Trainer(model, plan, file)
    device = examples.video.device
    ropes = [model.rotary(texts.layout.positions().to(device)) for texts in examples.texts]

    def losses(step: int) -> list[Tensor]:
        host = torch.Generator().manual_seed(step)
        which = int(torch.randint(len(examples.texts), (1,), generator=host))
        texts = examples.texts[which]
        chosen = torch.randint(len(texts.clips), (batch,), generator=host).to(device)
        rows = texts.clips[chosen]
        clean = Velocity(*(part[rows].transpose(0, 1).float() for part in (examples.video, examples.audio)))
        # Evenly over the grid that video and audio share when they are sampled.
        even = (torch.arange(batch, device=device) + torch.rand(batch, device=device)) / batch
        sigmas = Velocity(shift(even, VIDEO_SHIFT), shift(even, AUDIO_SHIFT))
        noise = Velocity(torch.randn_like(clean.video), torch.randn_like(clean.audio))
        noisy = Velocity(
            torch.lerp(clean.video, noise.video, sigmas.video[:, None]),
            torch.lerp(clean.audio, noise.audio, sigmas.audio[:, None]),
        )
        keyframes, clocks = clean.video[:0], [1 - sigmas.video, 1 - sigmas.audio]
        if texts.layout.anchors:
            keyframes = _keyframes(examples, texts.layout, clean.video)
            clocks.append(clocks[0].clamp(min=KEYFRAME_TIME))
        states = texts.states[chosen].transpose(0, 1)
        found = velocity(model, texts.layout, ropes[which], states, noisy, torch.stack(clocks), keyframes)
        return [
            F.mse_loss(found.video, clean.video - noise.video),
            F.mse_loss(found.audio, clean.audio - noise.audio),
        ]

    done = trainer.run(losses, deadline)
    trainer.take_mean()
    return done


def _keyframes(examples: Examples, layout: Layout, video: Tensor) -> Tensor:
    """The first latent frame as an encoder gives it to a request: sampled, and held just short of clean."""
    first = video[: layout.geometry.tokens_per_frame]
    sampled = first + torch.randn_like(first) * examples.keyframe_noise
    return torch.lerp(torch.randn_like(first), sampled, KEYFRAME_TIME)
