"""Sizes of the denoiser, read from a checkpoint's config.json. Knows no weights."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from h3.errors import CheckpointError, ConfigError

MODALITIES = 3  # AdaLN rows: video 0, text 1, audio 2
BLOCK_MODULATIONS = 6  # shift, scale and gate, for attention and for the MLP


class DenoiserConfig(BaseModel):
    """The official config.json's names; sizes in channels unless said. Raises ConfigError if they do not fit."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hidden_size: int
    num_layers: int
    num_refiner_layers: int
    num_attention_heads: int
    attention_head_dim: int
    ffn_dim: int  # inner width of the SwiGLU; fc1 has twice as many rows
    in_channels: int  # video latent
    audio_in_channels: int  # audio latent, per stereo channel
    patch_size: tuple[Literal[1], Literal[2], Literal[2]]  # latent frames, rows, columns in one video token
    text_dim: int
    freq_dim: int  # sinusoidal timestep embedding
    time_embed_hidden_dim: int
    time_embed_dim: int
    rope_freq_dim: int  # frequencies per axis (t, h, w)
    rope_theta: float
    norm_eps: float
    qk_norm_eps: float
    final_norm_eps: float

    def model_post_init(self, _context: object) -> None:
        if self.rope_dim > self.attention_head_dim:
            raise ConfigError(
                f"rope_freq_dim {self.rope_freq_dim} rotates {self.rope_dim} channels of a head, "
                f"but attention_head_dim is {self.attention_head_dim}"
            )

    @property
    def attention_dim(self) -> int:
        """All heads together: H x D."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def rope_dim(self) -> int:
        """Rotated channels of a head: two per frequency and axis."""
        return 2 * 3 * self.rope_freq_dim

    @property
    def patch_dim(self) -> int:
        """Width of one video token before projection: channels x patch."""
        return self.in_channels * self.patch_size[0] * self.patch_size[1] * self.patch_size[2]

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read an official or diffusers config.json. Raises CheckpointError naming what is missing or wrong."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as exc:
            raise CheckpointError(f"{path} is missing: is this the folder of an H3 checkpoint?") from exc
        except ValidationError as exc:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in exc.errors())
            raise CheckpointError(f"{path} is not the config.json of an H3 denoiser: {wrong}") from exc
