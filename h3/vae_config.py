"""Sizes of both autoencoders, as the JSON files of either layout state them. Knows no weights, imports no diffusers.

`VideoVaeConfig` and `AudioVaeConfig` have the arguments of the diffusers classes under their names; the official
files' own names are brought into these.
"""

import math
from pathlib import PurePath
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from h3.errors import CheckpointError
from h3.sequence import AUDIO_LATENTS_PER_SECOND, AUDIO_RATE_HZ, PIXELS_PER_LATENT

FRAMES_PER_LATENT = 4  # at most: a clip's first latent has one
_SAMPLES_PER_LATENT = AUDIO_RATE_HZ // AUDIO_LATENTS_PER_SECOND
_ROPE_CHANNELS = 6  # a frequency turns two of them on each of three axes

Fields = dict[str, object]
Model = TypeVar("Model", bound=BaseModel)
Factor = Literal[1, 2]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def parse(model: type[Model], fields: Fields, where: object) -> Model:
    """Raises CheckpointError naming `where` and every field that is missing or wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as exc:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in exc.errors())
        raise CheckpointError(f"{where} is not of an H3 autoencoder, official or diffusers': {wrong}") from exc


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


class _Stated(BaseModel):
    """What a JSON file states; other keys may stand beside it."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Normalised(_Stated):
    """How latents of the autoencoder become those of the denoiser."""

    latents_mean: tuple[FiniteFloat, ...]
    latents_std: tuple[Positive, ...]

    def _require_channels(self, channels: int) -> None:
        for name in ("latents_mean", "latents_std"):
            count = len(getattr(self, name))
            _require(count == channels, f"{name} has {count} values for {channels} latent channels")


class VideoVaeConfig(_Normalised):
    """The arguments of diffusers' AutoencoderKLMiniMaxH3. What has a default is stated by no official file."""

    in_channels: Literal[3] = 3
    out_channels: Literal[3]
    latent_channels: PositiveInt
    block_out_channels: tuple[PositiveInt, ...]
    layers_per_block: PositiveInt
    spatial_downsample_factors: tuple[Factor, ...]
    temporal_downsample_factors: tuple[Factor, ...]
    norm_num_groups: PositiveInt = 32
    norm_eps: Positive = 1e-6
    spatial_padding_mode: Literal["reflect"]
    decoder_num_layers: PositiveInt
    decoder_num_attention_heads: PositiveInt
    decoder_attention_head_dim: PositiveInt
    decoder_num_register_tokens: PositiveInt = 4
    decoder_ffn_mult: PositiveInt = 4
    decoder_rope_theta: Positive
    decoder_rope_dim_ratio: Positive
    decoder_norm_eps: Positive = 1e-5
    clip_length: Literal[17]  # h3/sequence.py counts in these
    token_drop: Literal[3]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        levels = len(self.block_out_channels)
        _require(
            levels == len(self.spatial_downsample_factors) == len(self.temporal_downsample_factors),
            f"{levels} block_out_channels need as many factors of space and of time",
        )
        space, time = math.prod(self.spatial_downsample_factors), math.prod(self.temporal_downsample_factors)
        _require(
            (space, time) == (PIXELS_PER_LATENT, FRAMES_PER_LATENT),
            f"a latent spans {space} pixels and {time} frames, expected {PIXELS_PER_LATENT} and {FRAMES_PER_LATENT}",
        )
        _require(
            all(width % self.norm_num_groups == 0 for width in self.block_out_channels),
            f"block_out_channels {self.block_out_channels} are no multiples of {self.norm_num_groups} groups",
        )
        rope = int(self.decoder_attention_head_dim * self.decoder_rope_dim_ratio)
        _require(
            0 < rope <= self.decoder_attention_head_dim and rope % _ROPE_CHANNELS == 0,
            f"decoder_rope_dim_ratio turns {rope} of {self.decoder_attention_head_dim} channels, no multiple of 6",
        )
        self._require_channels(self.latent_channels)
        return self


def _require_inside(path: str) -> str:
    place = PurePath(path)
    _require(not place.is_absolute() and ".." not in place.parts, f"{path!r} leaves the folder")
    return path


RelativePath = Annotated[str, AfterValidator(_require_inside)]


class OfficialWrapper(_Normalised):
    """video_vae/config.json. The tiling is the class's own, and part of the model."""

    source_path: RelativePath  # of the folder with the source's config.json
    source_safetensors_path: RelativePath  # of its tensors, from there
    vae_clip_length: Literal[17]
    vae_token_drop: Literal[3]
    vae_tile_size: Literal[256]
    vae_tile_overlap_min: Literal[64]


class OfficialViT(_Stated):
    num_layers: PositiveInt = 36
    heads: PositiveInt = 32
    dim_head: PositiveInt = 64
    rope_theta: Positive = 100.0
    rope_dim_ratio: Positive = 0.75


class OfficialSource(_Stated):
    """The source's config.json. What is absent there has the published value."""

    ch: PositiveInt = 128
    ch_mult: tuple[PositiveInt, ...] = (1, 2, 2, 4, 4, 8)
    num_res_blocks: PositiveInt = 2
    space_down: tuple[Factor, ...] = (2, 2, 2, 2, 1, 1)
    time_down: tuple[Factor, ...] = (1, 2, 2, 1, 1, 1)
    z_channels: PositiveInt = 24
    embed_dim: PositiveInt = 24
    out_ch: Literal[3] = 3
    padding_mode: Literal["reflect"] = "reflect"
    vit_decoder_kwargs: OfficialViT = OfficialViT()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _require(self.z_channels == self.embed_dim, f"z_channels {self.z_channels}, but embed_dim {self.embed_dim}")
        return self

    def arguments(self, wrapper: OfficialWrapper) -> Fields:
        """As the class names them."""
        vit = self.vit_decoder_kwargs
        return {
            "out_channels": self.out_ch,
            "latent_channels": self.embed_dim,
            "block_out_channels": tuple(self.ch * factor for factor in self.ch_mult),
            "layers_per_block": self.num_res_blocks,
            "spatial_downsample_factors": self.space_down,
            "temporal_downsample_factors": self.time_down,
            "spatial_padding_mode": self.padding_mode,
            "decoder_num_layers": vit.num_layers,
            "decoder_num_attention_heads": vit.heads,
            "decoder_attention_head_dim": vit.dim_head,
            "decoder_rope_theta": vit.rope_theta,
            "decoder_rope_dim_ratio": vit.rope_dim_ratio,
            "clip_length": wrapper.vae_clip_length,
            "token_drop": wrapper.vae_token_drop,
            "latents_mean": wrapper.latents_mean,
            "latents_std": wrapper.latents_std,
        }


class AudioVaeConfig(_Normalised):
    """The arguments of diffusers' AutoencoderKLMiniMaxH3Audio. What has a default may be absent in official files."""

    encoder_dim: PositiveInt
    encoder_rates: tuple[PositiveInt, ...]
    latent_dim: PositiveInt
    latent_channels: PositiveInt
    num_attention_heads: PositiveInt = 8
    decoder_dim: PositiveInt
    decoder_rates: tuple[PositiveInt, ...]
    decoder_kernel_sizes: tuple[PositiveInt, ...]
    resblock_kernel_sizes: tuple[PositiveInt, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[PositiveInt, ...], ...] = ((1, 3, 5),) * 3
    sampling_rate: Literal[32_000]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name in ("encoder_rates", "decoder_rates"):
            hop = math.prod(getattr(self, name))
            _require(hop == _SAMPLES_PER_LATENT, f"{name}: {hop} samples a latent, expected {_SAMPLES_PER_LATENT}")
        for one, other in (
            ("decoder_rates", "decoder_kernel_sizes"),
            ("resblock_kernel_sizes", "resblock_dilation_sizes"),
        ):
            counts = len(getattr(self, one)), len(getattr(self, other))
            _require(counts[0] == counts[1], f"{counts[0]} {one}, but {counts[1]} {other}")
        for divisor in ("num_attention_heads", "latent_channels"):
            number = getattr(self, divisor)
            _require(
                self.latent_dim % number == 0, f"latent_dim {self.latent_dim} is no multiple of {divisor} {number}"
            )
        _require(
            self.decoder_dim % 2 ** len(self.decoder_rates) == 0,
            f"decoder_dim {self.decoder_dim} cannot be halved {len(self.decoder_rates)} times",
        )
        self._require_channels(self.latent_channels)
        return self


class OfficialAudioSizes(_Stated):
    """metadata.kwargs of audio_vae/metadata.json."""

    encoder_dim: PositiveInt
    encoder_rates: tuple[PositiveInt, ...]
    latent_dim: PositiveInt
    vae_latent_channels: PositiveInt
    decoder_dim: PositiveInt
    decoder_rates: tuple[PositiveInt, ...]
    decoder_type: Literal["bigvgan"]
    attn_proj: Literal[True]
    sample_rate: Literal[32_000]

    def arguments(self) -> Fields:
        """As the class names them, in JSON's types."""
        return {
            "encoder_dim": self.encoder_dim,
            "encoder_rates": list(self.encoder_rates),
            "latent_dim": self.latent_dim,
            "latent_channels": self.vae_latent_channels,
            "decoder_dim": self.decoder_dim,
            "decoder_rates": list(self.decoder_rates),
            "decoder_kernel_sizes": [2 * rate - rate % 2 for rate in self.decoder_rates],
            "sampling_rate": self.sample_rate,
            "sample_rate": self.sample_rate,  # the official config.json's word for it
        }
