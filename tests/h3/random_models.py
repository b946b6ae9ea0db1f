"""Untrained denoisers whose outputs can tell right from wrong."""

import torch

from h3.config import DenoiserConfig
from h3.model import MODEL_DTYPE, Denoiser
from h3.precision import Precision
from h3.untrained import TINY, Untrained, with_curve

MEDIUM = TINY.model_copy(update={"hidden_size": 384, "num_refiner_layers": 2, "ffn_dim": 1280, "time_embed_dim": 96})
MEDIUM_PRUNED = with_curve(MEDIUM)


def random_denoiser(
    config: DenoiserConfig, seed: int = 0, dtype: torch.dtype = MODEL_DTYPE, device: str = "cpu"
) -> Denoiser:
    """Values that bf16 (and, for a pruned model's AdaLN, fp16) can hold, so that every file format keeps them."""
    precision = Precision.FP32 if dtype == torch.float32 else Precision.BF16
    return Untrained(config, seed).load(torch.device(device), precision)
