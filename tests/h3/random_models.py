"""Untrained denoisers whose outputs can tell right from wrong.

Freshly initialised, H3's velocity is tiny against its noise and its attention nearly uniform, so a wrong head order or
a missing row would pass any gate. These weights are scaled so that each part of the model moves the result.
"""

import torch

from h3.config import DenoiserConfig
from h3.model import MODEL_DTYPE, Denoiser, rotary_frequencies
from h3.tiny import DENOISER

MEDIUM = DENOISER.model_copy(
    update={"hidden_size": 384, "num_refiner_layers": 2, "ffn_dim": 1280, "time_embed_dim": 96}
)
CURVE = {"curve_points": 1025, "time_embed_dim": 8, "freq_dim": 0, "time_embed_hidden_dim": 0}
MEDIUM_PRUNED = MEDIUM.model_copy(update=CURVE)
PUBLISHED = DenoiserConfig(
    hidden_size=5376,
    num_layers=50,
    num_refiner_layers=2,
    num_attention_heads=56,
    attention_head_dim=128,
    ffn_dim=14336,
    in_channels=24,
    audio_in_channels=32,
    text_dim=5120,
    freq_dim=256,
    time_embed_hidden_dim=5376,
    time_embed_dim=2688,
)
PUBLISHED_PRUNED = PUBLISHED.model_copy(update=CURVE)

NORM_SPREAD = 0.2
QK_SCALE = 1.25  # of q and k after their norm: logits with a standard deviation of about 1.6
MODULATION = 0.75  # over the root of the number of blocks, so that roundings add up to as much in any depth


def random_denoiser(
    config: DenoiserConfig, seed: int = 0, dtype: torch.dtype = MODEL_DTYPE, device: str = "cpu"
) -> Denoiser:
    """Values that bf16 (and, for a pruned model's AdaLN, fp16) can hold, so that every file format keeps them.

    Another device draws other values.
    """
    modulation = MODULATION / config.num_layers**0.5
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device("meta"):
        model = Denoiser(config, dtype)
    model = model.to_empty(device=device).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, device=device)
        if "norm" in name:
            values.mul_(NORM_SPREAD).add_(1).mul_(QK_SCALE if ".q_norm" in name or ".k_norm" in name else 1)
        elif name.endswith("bias"):
            values.mul_(modulation if "adaln" in name else 0.1)
        else:
            values.mul_((modulation if "adaln_proj" in name else 1) / parameter.shape[1] ** 0.5)
        parameter.data.copy_(values.half().bfloat16())
    model.rope.inv_freq.copy_(rotary_frequencies(config))
    if config.is_pruned:
        time = torch.linspace(0, 1, config.curve_points)[:, None]
        rates = torch.arange(1, config.time_embed_dim + 1)
        model.adaln_t_table.copy_(torch.cos(time * rates * 1.7 + rates))
    return model
