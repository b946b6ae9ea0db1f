"""The diffusers implementation of H3 as an independent oracle, and our weights under its names."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from diffusers import MiniMaxH3Scheduler, MiniMaxH3Transformer3DModel
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep
from torch import Tensor, nn

from h3.model import Denoiser, Velocity
from h3.sampler import Latents
from h3.sequence import Layout, Modality

# Ours to theirs; the rest is equal, or handled below.
NAMES = (
    ("video_patch_proj.", "proj_in."),
    ("audio_patch_proj.", "audio_proj_in."),
    ("condition_proj.", "context_embedder."),
    ("time_embedder.proj_in.", "time_embedder.linear_1."),
    ("time_embedder.proj_out.", "time_embedder.linear_2."),
    ("token_refiner.blocks.", "token_refiner.refiner_blocks."),
    ("attn.q_norm.", "attn.norm_q."),
    ("attn.k_norm.", "attn.norm_k."),
    ("attn.out_proj.", "attn.to_out.0."),
    ("mlp.fc2.", "ff.net.2."),
    ("final_layer.norm.", "norm_out.norm."),
    ("final_layer.adaln_proj.linear.", "norm_out.linear."),
    ("final_layer.video_out.", "proj_out."),
    ("final_layer.audio_out.", "audio_proj_out."),
)
KEYFRAME_TIME = torch.tensor(0.999)


@dataclass(frozen=True, slots=True)
class PackedRequest:
    """A request's rows as diffusers lays them out: positions, tags and where each modality's rows are."""

    positions: Tensor
    tags: Tensor
    video: Tensor  # keyframes first
    audio: Tensor
    text: Tensor
    keyframe_rows: int

    @classmethod
    def of(cls, layout: Layout) -> Self:
        geometry = layout.geometry
        tags = torch.ones(layout.text_tokens, dtype=torch.long)
        for block in layout.vision:
            tags[block.start : block.stop] = 0
        positions, tags, video, audio, text, keyframe_rows, _ = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            tags,
            geometry.latent_frames,
            geometry.latent_height,
            geometry.latent_width,
            geometry.audio_latents,
            patch_size=(1, 2, 2),
            audio_channels=2,
            audio_tag=Modality.AUDIO,
            video_tag=Modality.VIDEO,
            keyframe_anchors=tuple(str(anchor) for anchor in layout.anchors),
        )
        return cls(positions, tags, video, audio, text, keyframe_rows)

    def clocks(self) -> Tensor:
        """Which of (video, audio, keyframe) each row's timestep is."""
        clocks = torch.zeros(len(self.positions), dtype=torch.long)
        clocks[self.audio] = 1
        clocks[self.video[: self.keyframe_rows]] = 2
        return clocks


def diffusers_positions(layout: Layout) -> Tensor:
    return PackedRequest.of(layout).positions.float()


def diffusers_model(model: Denoiser) -> MiniMaxH3Transformer3DModel:
    """The same weights in the diffusers class, in the same memory where they are not rearranged."""
    sizes = model.config.model_dump(exclude={"curve_points"})
    if model.config.is_pruned:
        sizes |= {"freq_dim": 16, "time_embed_hidden_dim": 16}  # of a time embedding that is taken out below
    with torch.device("meta"):
        twin = MiniMaxH3Transformer3DModel(**sizes)
    device = model.rope.inv_freq.device
    twin.rope = type(twin.rope)(rope_freq_dim=model.config.rope_freq_dim, rope_theta=model.config.rope_theta).to(device)
    weights = dict(entry for item in model.state_dict().items() for entry in _renamed(*item))
    if model.config.is_pruned:
        _take_curve(twin, weights.pop("adaln_t_table"), model.dtype)
    twin.load_state_dict(weights, assign=True)
    return twin.eval().requires_grad_(False)


class _Curve(nn.Module):
    """A pruned model's time path in the place of theirs: linear between the rows of a table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, timesteps: Tensor) -> Tensor:
        rows = []
        for t in timesteps.tolist():
            place = t * (len(self.table) - 1)
            below = min(int(place), len(self.table) - 2)
            rows.append(torch.lerp(self.table[below], self.table[below + 1], place - below))
        return torch.stack(rows)

    # What their forward asks a time embedder for: its dtype.
    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        return iter([self.table])


class _CurveProjection(nn.Module):
    """Their AdaLN without its activation, which the curve has in it already."""

    def __init__(self, projection: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.hidden_size, self.dtype = projection.linear, projection.hidden_size, dtype

    def forward(self, temb: Tensor) -> tuple[Tensor, ...]:
        return self.linear(temb).to(self.dtype).view(-1, 6 * self.hidden_size).chunk(6, dim=-1)


class _CurveNorm(nn.Module):
    def __init__(self, norm_out: nn.Module) -> None:
        super().__init__()
        self.norm, self.linear = norm_out.norm, norm_out.linear

    def forward(self, x: Tensor, temb: Tensor, rows: Tensor) -> Tensor:
        shift, scale = self.linear(temb).to(x.dtype).chunk(2, dim=-1)
        return self.norm(x) * (1 + scale[rows]) + shift[rows]


def _take_curve(twin: MiniMaxH3Transformer3DModel, table: Tensor, dtype: torch.dtype) -> None:
    twin.time_proj, twin.time_embedder = nn.Identity(), _Curve(table)
    twin.norm_out = _CurveNorm(twin.norm_out)
    for block in twin.transformer_blocks:
        block.adaln_proj = _CurveProjection(block.adaln_proj, dtype)


def _renamed(name: str, weight: Tensor) -> list[tuple[str, Tensor]]:
    for ours, theirs in NAMES:
        name = name.replace(ours, theirs)
    if name.startswith("blocks."):
        name = f"transformer_{name}"
    if name == "rope.inv_freq":
        return []  # theirs is computed
    if "qkv_proj" in name:
        return [
            (name.replace("qkv_proj", f"to_{letter}"), part)
            for letter, part in zip("qkv", weight.chunk(3), strict=True)
        ]
    if "mlp.fc1" in name:
        gate, value = weight.chunk(2)
        return [(name.replace("mlp.fc1", "ff.net.0.proj"), torch.cat([value, gate]))]
    return [(name, weight)]


def diffusers_velocity(
    twin: MiniMaxH3Transformer3DModel, layout: Layout, states: Tensor, keyframes: Tensor, x: Latents, timesteps: Tensor
) -> Velocity:
    """timesteps [2 or 3]: video, audio, and keyframe if there is one."""
    packed, device = PackedRequest.of(layout), x.video.device
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        out = twin(
            hidden_states=torch.cat([keyframes, x.video])[None],
            audio_hidden_states=x.audio[None],
            encoder_hidden_states=states[None],
            timestep=timesteps,
            timestep_indices=packed.clocks().to(device),
            token_tags=packed.tags.to(device),
            position_ids=packed.positions.to(device),
            video_indices=packed.video.to(device),
            audio_indices=packed.audio.to(device),
            text_indices=packed.text.to(device),
        )
    return Velocity(out.sample[0][packed.keyframe_rows :], out.audio_sample[0])


def diffusers_denoise(
    twin: MiniMaxH3Transformer3DModel, layout: Layout, states: Tensor, keyframes: Tensor, x: Latents, steps: int
) -> Latents:
    """All steps with their schedulers, which count grid points."""
    video, audio = MiniMaxH3Scheduler(shift=12.0), MiniMaxH3Scheduler(shift=3.0)
    for scheduler in (video, audio):
        scheduler.set_timesteps(steps + 1)
    for t_video, t_audio in zip(video.timesteps, audio.timesteps, strict=True):
        clocks = [t_video, t_audio, *([torch.maximum(t_video, KEYFRAME_TIME)] if layout.anchors else [])]
        timesteps = torch.stack(clocks)
        velocity = diffusers_velocity(twin, layout, states, keyframes, x, timesteps)
        x = Latents(
            video.step(velocity.video, t_video, x.video).prev_sample,
            audio.step(velocity.audio, t_audio, x.audio).prev_sample,
        )
    return x
