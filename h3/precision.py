"""The number formats that the denoiser's weights may be computed in."""

from enum import StrEnum
from typing import Self

from h3.errors import ConfigError


class Precision(StrEnum):
    """What the block stack's weights are when a step runs."""

    FP32 = "fp32"  # for tests: every weight widened
    BF16 = "bf16"
    NVFP4 = "nvfp4"  # packed in memory; only from a checkpoint that holds them so
    FP8 = "fp8"  # rounded when loaded, and activations with them: faster and less exact

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigError naming the valid ones."""
        try:
            return cls(text)
        except ValueError as exc:
            why = "; fp16 overflows in H3's residual stream" if text == "fp16" else ""
            raise ConfigError(f"precision {text!r} is not one of {', '.join(cls)}{why}") from exc
