"""Predicts the memory of a render, so that one that cannot fit is never begun. Arithmetic, and one question to NVML.

A prediction by count: weights of every part, the activations of one block at its widest, and a reserve for the video
VAE's clip, kernels' workspace and the CUDA context.
"""

import os
import subprocess

from h3.config import DenoiserConfig

BYTES = 2  # bf16
RESERVE_BYTES = 12 << 30
TOY_BYTES = 8 << 30  # weights of less need no prediction: whatever fits the format fits a GPU
PIXELS_PER_TOKEN = 32 * 32 * 17 / 5  # of all frames: a clip of 17 frames is 5 latent frames


def predict_token_bytes(config: DenoiserConfig) -> int:
    """Of one token on its rank, where a block is widest: the stream, its norm, and attention or the MLP."""
    attention = 7 * config.attention_dim  # q, k, v before and after the exchange, and the output
    mlp = 3 * config.ffn_dim  # gate, value, product
    return BYTES * (2 * config.hidden_size + max(attention, mlp))


def predict_most_pixels(
    config: DenoiserConfig, weights_bytes: int, gpu_bytes: int | None, world_size: int
) -> int | None:
    """Of all frames together, in the mode in which every rank has all weights and its share of the tokens.

    None if there is no limit to predict.
    """
    if gpu_bytes is None or weights_bytes < TOY_BYTES:
        return None
    left = gpu_bytes - weights_bytes - RESERVE_BYTES
    return max(0, int(left * world_size / predict_token_bytes(config) * PIXELS_PER_TOKEN))


def find_gpu_bytes() -> int | None:
    """Memory of the smallest GPU that is visible; None without one. Asks the driver's own tool: no CUDA context."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query.append(f"--id={visible}")
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
        return min(int(line) for line in told.splitlines()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
