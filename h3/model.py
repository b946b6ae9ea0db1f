"""The H3 denoiser as on one device: refiner, blocks with three-modality AdaLN, rotary positions, two heads.

Module and parameter names are the official checkpoint's, with q, k and v rows contiguous (`checkpoint.py` brings
other orders into this one). The block stack has the model's dtype, bf16 unless asked otherwise; patch projections,
time path, heads and rotary angles are fp32 ("islands"). AdaLN depends only on (timestep, modality), and both are
constant on a `Span` of rows, so modulation is applied span by span, never per row. It reads the activated embedding of
the timestep or, in a pruned checkpoint, a short curve over time that stands for it.
Knows no ranks and no quantisation: `parallel/` replaces `Denoiser.velocity`, and `Attention.attend` or the `forward` of
attention and MLP, whose heads and values may be a part; `checkpoint.py` may put another linear layer in the place of
one of the blocks'.

Letters: T tokens, L text tokens, H heads, D head dim, C model dim, K distinct timesteps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from h3.config import BLOCK_MODULATIONS, MODALITIES, DenoiserConfig
from h3.sequence import Modality, Span

MODEL_DTYPE = torch.bfloat16
ISLAND_DTYPE = torch.float32
ISLANDS = (
    "video_patch_proj.",
    "audio_patch_proj.",
    "time_embedder.",
    "final_layer.video_out.",
    "final_layer.audio_out.",
    "adaln_t_table",
)
_LONGEST_PERIOD = 10_000.0  # of the timestep's sinusoids


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary angles of a row range: cos and sin [T, rope_dim / 2], computed in fp32, kept in the model's dtype."""

    cos: Tensor
    sin: Tensor

    def rows(self, owned: slice) -> "Rope":
        return Rope(self.cos[owned], self.sin[owned])


@dataclass(frozen=True, slots=True)
class Modulation:
    """AdaLN of one step: what every block and the final layer add and multiply, per timestep and modality."""

    blocks: Sequence[Tensor]  # each [K, 3, 6, C]: timestep, modality, (shift, scale, gate) x (attention, MLP)
    final: Tensor  # [K, 2, C]: shift, scale


@dataclass(frozen=True, slots=True)
class Velocity:
    """Data-ward velocity of the target rows, fp32."""

    video: Tensor  # [V, patch_dim]
    audio: Tensor  # [2A, audio channels]


Attend = Callable[[Tensor], Tensor]


def attend_all_heads(qkv: Tensor) -> Tensor:
    """Full attention of every row to every row: [T, 3, H, D] to [T, H, D]."""
    q, k, v = (part.transpose(0, 1)[None] for part in qkv.unbind(1))  # [1, H, T, D]
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


class Attention(nn.Module):
    """Self-attention with per-head RMSNorm on q and k, and rotary positions where given."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.num_attention_heads, config.attention_head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.attention_dim, bias=False)
        self.q_norm = nn.RMSNorm(config.attention_head_dim, eps=config.qk_norm_eps)
        self.k_norm = nn.RMSNorm(config.attention_head_dim, eps=config.qk_norm_eps)
        self.out_proj = nn.Linear(config.attention_dim, config.hidden_size, bias=False)
        self.attend: Attend = attend_all_heads

    def forward(self, x: Tensor, rope: Rope | None = None) -> Tensor:
        return self.out_proj(self.attend(self._project(x, rope)).flatten(1))

    def _project(self, x: Tensor, rope: Rope | None) -> Tensor:
        """[T, 3, H, D]."""
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.heads, self.head_dim))
        # Into the same memory, one after the other: here a block is at its widest.
        for part, norm in zip(qkv.unbind(1), (self.q_norm, self.k_norm), strict=False):
            normed = norm(part)
            part.copy_(normed if rope is None else rotate(normed, rope))
        return qkv


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate the leading channels of each head, pairing channel j with j + rope_dim / 2. [T, H, D]"""
    half = rope.cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    cos, sin = rope.cos[:, None], rope.sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


class Mlp(nn.Module):
    """SwiGLU; the first half of fc1's rows is the gate."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, 2 * config.ffn_dim, bias=False)
        self.fc2 = nn.Linear(config.ffn_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate, inplace=True).mul_(value))  # in the memory of the gate, for both are wide


class AdaLNProjection(nn.Module):
    """From the time features to modulation; the official name of its weight is `linear`."""

    def __init__(self, config: DenoiserConfig, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(config.time_embed_dim, outputs * config.hidden_size)

    def forward(self, time: Tensor) -> Tensor:
        return self.linear(time)


class RefinerBlock(nn.Module):
    """Plain pre-norm block for the text rows: no positions, no AdaLN."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = Attention(config)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TokenRefiner(nn.Module):
    """Runs once per request: it does not depend on the timestep."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RefinerBlock(config) for _ in range(config.num_refiner_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=config.final_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)


class Block(nn.Module):
    """Attention and MLP, each normalised, modulated per span, and gated back into the residual."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = Attention(config)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.adaln_proj = AdaLNProjection(config, MODALITIES * BLOCK_MODULATIONS)

    def forward(self, x: Tensor, rope: Rope, spans: list[Span], modulation: Tensor) -> Tensor:
        """One block over the rows that `spans` cover. x [T, C], modulation [K, 3, 6, C]"""
        rows = [(span.rows, modulation[span.clock, span.modality]) for span in spans]
        x = x + self._attend(x, rope, rows)
        hidden = self.mlp(modulate(self.norm2(x), [(r, m[3], m[4]) for r, m in rows]))
        return x + gate(hidden, [(r, m[5]) for r, m in rows])

    def _attend(self, x: Tensor, rope: Rope, rows: list[tuple[slice, Tensor]]) -> Tensor:
        """What attention adds. rows: with the modulation [6, C] of each span"""
        attended = self.attn(modulate(self.norm1(x), [(r, m[0], m[1]) for r, m in rows]), rope)
        return gate(attended, [(r, m[2]) for r, m in rows])


def modulate(x: Tensor, spans: list[tuple[slice, Tensor, Tensor]]) -> Tensor:
    """x * (1 + scale) + shift, span by span (rows, shift, scale). [T, C]"""
    return torch.cat([x[rows] * (1 + scale) + shift for rows, shift, scale in spans])


def gate(x: Tensor, spans: list[tuple[slice, Tensor]]) -> Tensor:
    """x * gate, span by span (rows, gate). [T, C]"""
    return torch.cat([x[rows] * factor for rows, factor in spans])


class TimeEmbedder(nn.Module):
    """Sinusoids and a two-layer MLP, fp32."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.freq_dim = config.freq_dim
        self.proj_in = nn.Linear(config.freq_dim, config.time_embed_hidden_dim)
        self.proj_out = nn.Linear(config.time_embed_hidden_dim, config.time_embed_dim)

    def forward(self, timesteps: Tensor) -> Tensor:
        """timesteps [K] fp32 in [0, 1], 0 = pure noise, not scaled. Returns [K, time_embed_dim]."""
        half = self.freq_dim // 2
        index = torch.arange(half, dtype=ISLAND_DTYPE, device=timesteps.device)
        angles = timesteps[:, None] * torch.exp(-math.log(_LONGEST_PERIOD) * index / half)
        return self.proj_out(F.silu(self.proj_in(torch.cat([angles.cos(), angles.sin()], dim=-1))))


class FinalLayer(nn.Module):
    """Last norm, modulated by timestep alone, and the two velocity heads (fp32)."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.final_norm_eps)
        self.adaln_proj = AdaLNProjection(config, 2)
        self.video_out = nn.Linear(config.hidden_size, config.patch_dim)
        self.audio_out = nn.Linear(config.hidden_size, config.audio_in_channels)

    def forward(self, x: Tensor, spans: list[Span], modulation: Tensor) -> Velocity:
        """x [T, C], modulation [K, 2, C]. The heads see only the target rows of their modality."""
        x = self.norm(x)
        video = self._rows(x, spans, Modality.VIDEO, modulation)
        audio = self._rows(x, spans, Modality.AUDIO, modulation)
        return Velocity(self.video_out(video), self.audio_out(audio))

    def _rows(self, x: Tensor, spans: list[Span], modality: Modality, modulation: Tensor) -> Tensor:
        """Modulated target rows of one modality, fp32; a shard may have none."""
        chosen = [(s.rows, *modulation[s.clock]) for s in spans if s.is_target and s.modality is modality]
        return modulate(x, chosen).to(ISLAND_DTYPE) if chosen else x.new_empty(0, x.shape[1], dtype=ISLAND_DTYPE)


class RopeFrequencies(nn.Module):
    """Holds `inv_freq`, which the checkpoint carries."""

    inv_freq: Tensor

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.register_buffer("inv_freq", rotary_frequencies(config).to(torch.get_default_device()))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rope:
        """positions [T, 3] fp32."""
        angles = (positions[:, :, None] * self.inv_freq).flatten(1)  # [T, 3 * rope_freq_dim]: t, h, w
        return Rope(angles.cos().to(dtype), angles.sin().to(dtype))


def rotary_frequencies(config: DenoiserConfig) -> Tensor:
    """theta ^ (-j / n) for the n frequencies of an axis: [n] fp32 on the CPU, the bits of the official checkpoint."""
    # Wherever the model is: `arange` on `meta` imports torch's compiler, which takes each rank a second.
    steps = torch.arange(0, 2 * config.rope_freq_dim, 2, dtype=ISLAND_DTYPE, device="cpu")
    return 1.0 / torch.as_tensor(config.rope_theta, device="cpu") ** (steps / (2 * config.rope_freq_dim))


class Denoiser(nn.Module):
    """The whole transformer. Inference only; call `eval()` and run it without gradients."""

    adaln_t_table: Tensor  # [points, time_embed_dim] fp32, in a pruned model only: from pure noise to clean

    def __init__(self, config: DenoiserConfig, dtype: torch.dtype = MODEL_DTYPE) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.video_patch_proj = nn.Linear(config.patch_dim, config.hidden_size)
        self.audio_patch_proj = nn.Linear(config.audio_in_channels, config.hidden_size)
        self.condition_proj = nn.Linear(config.text_dim, config.hidden_size)
        if config.is_pruned:
            self.register_buffer("adaln_t_table", torch.randn(config.curve_points, config.time_embed_dim))
        else:
            self.time_embedder = TimeEmbedder(config)
        self.rope = RopeFrequencies(config)
        self.token_refiner = TokenRefiner(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_layer = FinalLayer(config)
        for name, parameter in self.named_parameters():
            parameter.data = parameter.data.to(ISLAND_DTYPE if is_island(name, config) else dtype)

    def refine(self, states: Tensor) -> Tensor:
        """Text encoder states [L, text_dim] to text rows [L, C]. Once per request."""
        return self.token_refiner(self.condition_proj(states.to(self.dtype)))

    def rotary(self, positions: Tensor) -> Rope:
        """positions [T, 3] fp32, of all rows."""
        return self.rope(positions, self.dtype)

    def modulation(self, timesteps: Tensor) -> Modulation:
        """AdaLN at the timesteps [K] fp32."""
        time = self._time_features(timesteps)
        shape = (MODALITIES, BLOCK_MODULATIONS, self.config.hidden_size)
        projections = [block.get_submodule("adaln_proj") for block in self.blocks]
        return Modulation(
            blocks=[project(time).to(self.dtype).unflatten(-1, shape) for project in projections],
            final=self.final_layer.adaln_proj(time).to(self.dtype).unflatten(-1, (2, self.config.hidden_size)),
        )

    def _time_features(self, timesteps: Tensor) -> Tensor:
        """What every AdaLN projection reads: [K, time_embed_dim], in the projections' dtype."""
        if self.config.is_pruned:
            return interpolate(self.adaln_t_table, timesteps)  # activated already, and evaluated in fp32
        # Activated in fp32, then rounded once: every block reads the same rounding.
        return F.silu(self.time_embedder(timesteps)).to(self.dtype)

    def embed(self, text: Tensor, keyframes: Tensor, audio: Tensor, video: Tensor) -> Tensor:
        """Pack refined text [L, C], keyframe rows, audio rows and video rows (fp32) into one sequence [T, C]."""
        # Each rounded as it is made: in fp32 the whole sequence is wide, also on a rank that has few of its rows.
        return torch.cat(
            [
                text,
                self.video_patch_proj(keyframes).to(self.dtype),
                self.audio_patch_proj(audio).to(self.dtype),
                self.video_patch_proj(video).to(self.dtype),
            ]
        )

    def velocity(self, x: Tensor, rope: Rope, spans: list[Span], modulation: Modulation) -> Velocity:
        """The block stack and the heads over the packed sequence x [T, C]."""
        for block, block_modulation in zip(self.blocks, modulation.blocks, strict=True):
            x = block(x, rope, spans, block_modulation)
        return self.final_layer(x, spans, modulation.final)


def is_island(name: str, config: DenoiserConfig) -> bool:
    """Whether a parameter is fp32 whatever the model's dtype; a pruned model's AdaLN is so too, being small."""
    return name.startswith(ISLANDS) or (config.is_pruned and ".adaln_proj." in name)


def interpolate(table: Tensor, timesteps: Tensor) -> Tensor:
    """Rows of a curve [P, D] that stands at P even points of [0, 1], between them linear: [K, D]."""
    place = timesteps.clamp(0, 1) * (len(table) - 1)
    below = place.floor().clamp(max=len(table) - 2).long()
    return torch.lerp(table[below], table[below + 1], (place - below)[:, None])
