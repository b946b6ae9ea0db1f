"""Decodes the tiles of a clip in batches: tiles are part of the model, one after the other they are not.

diffusers' class runs its decoder once a tile, 15 times for a clip of 864x480: some 13,000 small kernels, which a GPU
waits for. Which tiles there are, and how they are blended, stays the class's. A batch may round otherwise than a tile
alone, as other kernels are chosen for it; the same batches give the same bits. On a CPU tiles stay alone.
"""

from functools import partial

import torch
from diffusers import AutoencoderKLMiniMaxH3
from torch import Tensor

MOST_TILES = 8  # at once: 14,376 rows, within the memory that a placement leaves to decode


def decode_tiles_together(vae: AutoencoderKLMiniMaxH3) -> None:
    """Let the class decode so. Its method is private: a test compares with the class as it is."""
    vae._decode_clip = partial(_decode_clip, vae)


def _decode_clip(vae: AutoencoderKLMiniMaxH3, latents: Tensor) -> Tensor:
    """[1, C, F, Hl, Wl], denormalised, to [1, 3, frames, H, W]."""
    ratio = vae.spatial_compression_ratio
    height, width = (side * ratio for side in latents.shape[-2:])
    tops, heights, down = vae._split_tiles(height, vae.tile_sample_min_height, vae.tile_sample_min_overlap_height)
    lefts, widths, across = vae._split_tiles(width, vae.tile_sample_min_width, vae.tile_sample_min_overlap_width)
    rows = [slice(top // ratio, (top + size) // ratio) for top, size in zip(tops, heights, strict=True)]
    columns = [slice(left // ratio, (left + size) // ratio) for left, size in zip(lefts, widths, strict=True)]
    tiles = [latents[..., row, column] for row in rows for column in columns]
    decoded = decode_tiles(vae, tiles, MOST_TILES if latents.is_cuda else 1)
    lines = [decoded[start : start + len(columns)] for start in range(0, len(decoded), len(columns))]
    stitched: Tensor = vae._stitch_tiles(lines, down, across)
    return stitched


def decode_tiles(vae: AutoencoderKLMiniMaxH3, tiles: list[Tensor], most: int) -> list[Tensor]:
    """All of one size."""
    batches = torch.cat(tiles).tensor_split(-(-len(tiles) // most))
    return [tile for batch in batches for tile in vae.decoder(vae.post_quant_conv(batch)).split(1)]
