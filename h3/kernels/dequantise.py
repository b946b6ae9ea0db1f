"""NVFP4 weights to bf16 or fp32 on the GPU, bit for bit as `h3.nvfp4` gives them, which also tells the layouts.

A program covers 128 rows, the height of a scale tile, by 256 values, four tiles: it reads whole scale tiles and 128
bytes of codes a row. A thread reads four bytes at once and writes the eight values that they become: in bf16, 16 bytes
at once, rounded in pairs by one instruction, with nothing shuffled between threads. Both formats are decoded by
shifting their bits into a fp16, whose conversion to fp32 is exact for subnormals too and never flushes them.

The two products round in a fixed order, since there is no sum to fuse them with. Triton keeps subnormals of fp32, as
products and on the way to bf16.
"""

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

_ROWS = 128  # of a program
_WORDS = 32  # of four bytes of codes, of a program
_WARPS = 16


def dequantise_on_gpu(codes: Tensor, scales: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write e2m1 * (e4m3 * scale) to `out`, on the current stream, without waiting for it.

    codes   [N, K/2] u8, contiguous
    scales  [ceil128(N), ceil4(K/16)] e4m3, swizzled, contiguous
    scale   [] fp32, read by the kernel
    out     [N, K] bf16 or fp32, contiguous
    """
    rows, row_bytes = codes.shape
    assert all(tensor.is_contiguous() for tensor in (codes, scales, out))
    assert out.shape == (rows, 2 * row_bytes), out.shape
    assert out.dtype in (torch.bfloat16, torch.float32), out.dtype
    assert (scale.dtype, scale.numel()) == (torch.float32, 1), scale
    grid = (triton.cdiv(row_bytes, 4 * _WORDS), triton.cdiv(rows, _ROWS))
    with torch.cuda.device(codes.device):  # Triton launches on the current device, wherever the tensors are
        _dequantise[grid](
            codes,
            scales.view(torch.uint8),
            scale,
            out,
            rows,
            row_bytes,
            scales.shape[1] // 4,
            tile_rows=_ROWS,
            tile_words=_WORDS,
            num_warps=_WARPS,
        )


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _dequantise(
    codes: tl.tensor,
    scales: tl.tensor,
    tensor_scale: tl.tensor,
    out: tl.tensor,
    rows: int,
    row_bytes: int,
    tiles: int,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
) -> None:
    first_row = tl.program_id(1).to(tl.int64) * tile_rows  # 64 bits: a weight may have more than 2^31 values
    # One long axis of (row, word): with two, Triton may lay the threads of a warp along the rows.
    place = tl.arange(0, tile_rows * tile_words)[:, None]
    row, word = place // tile_words, tl.program_id(0) * tile_words + place % tile_words
    exists = (first_row + row < rows) & (word * 4 < row_bytes)  # a row is whole words: 16 values are two

    block = word // 2
    scale_at = (block // 4) * 512 + (row % 32) * 16 + (row // 32) * 4 + block % 4
    scale = tl.load(scales + first_row * tiles * 4 + scale_at, mask=exists, other=0).to(tl.uint32)
    # 2^8 for e4m3, and 2^14 for e2m1 below: what their smaller exponent biases take away in a fp16. Both are exact.
    block_scale = _as_float(((scale & 0x7F) << 7) | ((scale & 0x80) << 8)) * 256.0
    block_scale = tl.where((scale & 0x7F) == 0x7F, float("nan"), block_scale)  # a damaged scale shows
    factor = block_scale * tl.load(tensor_scale)

    at = row * row_bytes + word * 4
    pair = tl.load(codes + first_row * row_bytes + (at + tl.arange(0, 4)[None, :]), mask=exists, other=0).to(tl.uint32)
    # Both codes at once, the even one's magnitude and sign to bits 9 and 15, the odd one's 16 bits higher.
    bits = ((pair * 0x02000020) & 0x0E000E00) | ((pair * 0x10000100) & 0x80008000)
    e2m1 = tl.join(_as_float(bits), _as_float(bits >> 16)).reshape(tile_rows * tile_words, 8) * 16384.0
    values = (e2m1 * factor).to(out.dtype.element_ty)
    tl.store(out + 2 * first_row * row_bytes + (2 * at + tl.arange(0, 8)[None, :]), values, mask=exists)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _as_float(bits: tl.tensor) -> tl.tensor:
    """The fp16 in the lower 16 bits, as fp32."""
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
