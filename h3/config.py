"""Sizes of the denoiser, read from a checkpoint's config.json. Knows no weights."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from h3.errors import CheckpointError, ConfigError

MODALITIES = 3  # AdaLN rows: video 0, text 1, audio 2
BLOCK_MODULATIONS = 6  # shift, scale and gate, for attention and for the MLP


# A damaged file must not make us build a million layers, or one that torch cannot count.
Size = Annotated[int, Field(ge=1, le=2**20)]
SizeOrZero = Annotated[int, Field(ge=0, le=2**20)]
Count = Annotated[int, Field(ge=1, le=512)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _also(official: str) -> FieldInfo:
    """The name that the model's own implementation has for a field; the published config.json holds both."""
    return Field(validation_alias=AliasChoices(official))


class DenoiserConfig(BaseModel):
    """The official config.json's names; sizes in channels unless said. Raises ConfigError if they do not fit."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    hidden_size: Size
    num_layers: Count
    num_refiner_layers: Annotated[Count, _also("token_refiner_num_layers")]
    num_attention_heads: Count
    attention_head_dim: Size
    ffn_dim: Annotated[Size, _also("ffn_hidden_size")]  # inner width of the SwiGLU; fc1 has twice as many rows
    in_channels: Annotated[Size, _also("latents_dim")]  # video latent
    audio_in_channels: Annotated[Size, _also("audio_latents_dim")]  # audio latent, per stereo channel
    patch_size: tuple[Literal[1], Literal[2], Literal[2]] = (1, 2, 2)  # latent frames, rows, columns in a video token
    text_dim: Size
    freq_dim: Annotated[SizeOrZero, _also("timestep_input_dim")]  # sinusoidal timestep embedding; 0 if pruned
    time_embed_hidden_dim: Annotated[SizeOrZero, _also("time_embed_hidden_size")]  # 0 if pruned
    time_embed_dim: Size  # what every AdaLN projection reads
    curve_points: SizeOrZero = 0  # of the table that a pruned checkpoint has instead of the time embedding; else 0
    rope_freq_dim: Annotated[Size, _also("rope_inv_freq_len")] = 16  # frequencies per axis (t, h, w)
    rope_theta: Positive = 10_000.0
    norm_eps: Positive = 1e-5
    qk_norm_eps: Positive = 1e-5
    final_norm_eps: Positive = 1e-5

    def model_post_init(self, _context: object) -> None:
        if self.rope_dim > self.attention_head_dim:
            raise ConfigError(
                f"rope_freq_dim {self.rope_freq_dim} rotates {self.rope_dim} channels of a head, "
                f"but attention_head_dim is {self.attention_head_dim}"
            )
        if self.is_pruned:
            if self.curve_points < 2:
                raise ConfigError(f"curve_points {self.curve_points} are no curve, expected 2 or more")
        elif self.freq_dim < 2 or self.freq_dim % 2 or not self.time_embed_hidden_dim:
            raise ConfigError(
                f"freq_dim {self.freq_dim} and time_embed_hidden_dim {self.time_embed_hidden_dim} are no time "
                "embedding, expected an even number and one above 0"
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
    def is_pruned(self) -> bool:
        """Whether AdaLN reads a short curve over time instead of the time embedding."""
        return self.curve_points > 0

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
