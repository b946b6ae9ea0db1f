"""NVFP4 linears: weights of 4.5 bits a value, as ComfyUI's checkpoints hold them. Knows no file and no model.

Method. A value is e2m1 * e4m3 * fp32: a code of four bits (a sign and 0, 0.5, 1, 1.5, 2, 3, 4 or 6), a scale for each
block of 16 consecutive values of a row, and a scale for the tensor, which brings the largest block scale to 448. There
is one way to multiply them out, `dequantise`: the scales in fp32, times the code in fp32, rounded once to the dtype.

Layouts. Two codes a byte, the even element in the HIGH nibble. Hardware and torch's float4_e2m1fn_x2 have it in the
low one; a native product is right all the same, as both operands are packed our way and a dot product does not care
for the order of its terms. Block scales lie in tiles of 128 rows by 4 scale columns, 512 bytes each, the tiles of one
band of 128 rows after one another; within a tile, row m and column s are byte (m % 32) * 16 + (m // 32) * 4 + s.
The tensor's shape stays nominal, [ceil128(N), ceil4(K/16)], so nothing but this file tells such bytes from row-major
ones: read in the wrong order they give finite, plausible, wrong weights.

Trade-off. Where the GPU multiplies FP4 by FP4 (it is tried, never assumed), both operands are four bits: fastest, and
the activation is rounded too, with one scale for all rows of the call, so the result depends on how rows are split
over calls. Elsewhere only storage is small: before each product the weight is dequantised into a scratch, which moves
2.5625 bytes a value (bf16), however many rows there are. So a model that holds NVFP4 gives, bit for bit, what the same
weights give when they are dequantised at load. The tensor scale could multiply the output instead, which would leave
the weight exact; but that rounds otherwise, and over the 100 residual additions of 50 blocks in bf16 the smallest
difference grows to 1.8e-2 of the result (relative L2).

Source: NVFP4 and SWIZZLE_32_4_4 (1D block scaling) in NVIDIA's cuBLAS manual; key names and nibble order of ComfyUI.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from h3.errors import CheckpointError, ConfigError
from h3.native import find_obstacle
from h3.tensor_file import TensorForm

BLOCK = 16  # values that share a scale
TILE_ROWS, TILE_BLOCKS = 128, 4  # rows and scale columns of a tile
SCALE_DTYPE = torch.float8_e4m3fn
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the lower three bits of a code
_SIGN = 8
_LARGEST_CODE, _LARGEST_SCALE = _E2M1[-1], 448.0
_CHUNK_VALUES = 2**21  # worked on at once: some 100 MiB of fp32 temporaries
_FP4_COLUMNS = 32  # torch's FP4 product wants K to be a multiple of it,
_FP4_ROWS = 16  # and N and the activation's rows of this
_FP4_TOLERANCE = 1e-2  # relative L2; bf16 output alone is 2e-3, a wrong layout over 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A quantised weight [N, K]."""

    codes: Tensor  # [N, K/2] u8, contiguous
    scales: Tensor  # [ceil128(N), ceil4(K/16)] e4m3, swizzled, contiguous
    scale: Tensor  # [] fp32, multiplies

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def columns(self) -> int:
        return 2 * self.codes.shape[1]

    @property
    def blocks(self) -> int:
        """Scales of a row."""
        return self.columns // BLOCK

    def to(self, device: torch.device) -> "PackedWeight":
        return PackedWeight(self.codes.to(device), self.scales.to(device), self.scale.to(device))


def swizzle(scales: Tensor) -> Tensor:
    """Row-major block scales [N, Kb] of one byte each, in tiles: [ceil128(N), ceil4(Kb)], padded with zeros."""
    rows, columns = scales.shape
    padded = F.pad(scales.view(torch.uint8), (0, -columns % TILE_BLOCKS, 0, -rows % TILE_ROWS))
    split = padded.view(-1, 4, 32, padded.shape[1] // TILE_BLOCKS, TILE_BLOCKS)  # band, m // 32, m % 32, tile, s
    return split.permute(0, 3, 2, 1, 4).reshape(padded.shape).view(scales.dtype)


def unswizzle(scales: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `swizzle`, without the padding: [rows, columns], contiguous."""
    height, width = scales.shape
    split = scales.view(torch.uint8).view(-1, width // TILE_BLOCKS, 32, 4, TILE_BLOCKS)
    # from band, tile, m % 32, m // 32, s
    row_major = split.permute(0, 3, 2, 1, 4).reshape(height, width)
    return row_major[:rows, :columns].contiguous().view(scales.dtype)


def quantise(weight: Tensor) -> PackedWeight:
    """Round a weight [N, K] of any float dtype to NVFP4.

    Raises ConfigError if a row is not whole blocks, CheckpointError if a value is not finite.
    """
    rows, columns = weight.shape
    if columns % BLOCK:
        raise ConfigError(f"a weight [{rows}, {columns}] has rows that are not whole blocks of {BLOCK} values")
    largest = _largest(weight)
    if not largest.isfinite():
        raise CheckpointError(f"a weight [{rows}, {columns}] holds NaN or infinity and cannot be quantised")
    return _quantise(weight, largest)


def _largest(values: Tensor) -> Tensor:
    """The largest magnitude, fp32 []; NaN if there is one."""
    low, high = torch.aminmax(values)  # unlike abs().max(), it makes no copy
    return torch.maximum(-low, high).float()


def _quantise(values: Tensor, largest: Tensor) -> PackedWeight:
    """Never waits for the device."""
    rows, columns = values.shape
    scale = _divide(largest, _LARGEST_SCALE * _LARGEST_CODE)
    codes = values.new_empty(rows, columns // 2, dtype=torch.uint8)
    scales = values.new_empty(rows, columns // BLOCK, dtype=SCALE_DTYPE)
    for chunk in _row_chunks(rows, columns):
        codes[chunk], scales[chunk] = _quantise_rows(values[chunk], scale)
    return PackedWeight(codes, swizzle(scales), scale)


def _row_chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CHUNK_VALUES // columns)
    return (slice(start, start + step) for start in range(0, rows, step))


def _divide(values: Tensor, divisor: float) -> Tensor:
    """Divides by a tensor: by a number, CUDA multiplies with its reciprocal, which rounds otherwise than the CPU."""
    return values / torch.full_like(values, divisor)


def _quantise_rows(values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Packed codes [R, K/2] and row-major block scales [R, K/16] of values [R, K]."""
    blocks = values.float().unflatten(1, (-1, BLOCK))
    wanted = _divide(blocks.abs().amax(-1), _LARGEST_CODE) / scale
    # The scale is 0 where the tensor is, or where it is so small that fp32 cannot hold the scale.
    scales = torch.where(scale > 0, wanted, 0.0).clamp(max=_LARGEST_SCALE).to(SCALE_DTYPE)
    step = (scales.float() * scale)[..., None]
    steps = torch.where(step > 0, blocks / step, 0.0).clamp(-_LARGEST_CODE, _LARGEST_CODE)
    codes = _nearest_code(steps).flatten(1)
    return codes[:, 0::2] << 4 | codes[:, 1::2], scales


def _nearest_code(values: Tensor) -> Tensor:
    """The u8 code of values in [-6, 6], ties to the even code, as hardware rounds; -0 keeps its sign.

    The grid has steps of 0.5 up to 2 (codes 0 to 4), of 1 up to 4 (code 6), then of 2. Each range begins at an even
    code and is scaled by a power of two, so that rounding half to even in it is exact and picks the even code.
    """
    size = values.abs()
    coarse = torch.where(size < 4, size.round() + 2, (size / 2).round() + 4)
    code = torch.where(size < 2, (size * 2).round(), coarse)
    return code.to(torch.uint8) | values.signbit().to(torch.uint8) * _SIGN


def dequantise(packed: PackedWeight, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """The weight [N, K]: block scale times tensor scale in fp32, times the value in fp32, rounded once.

    Into `out`, contiguous and of that dtype, if given. On a GPU, bf16 or fp32, by a kernel that gives the same bits
    and never waits for the device.
    """
    if out is None:
        out = torch.empty(packed.rows, packed.columns, dtype=dtype, device=packed.codes.device)
    assert out.dtype == dtype, (out.dtype, dtype)
    if out.is_cuda:
        from h3.kernels.dequantise import dequantise_on_gpu  # Triton is there only where CUDA is

        dequantise_on_gpu(packed.codes, packed.scales, packed.scale, out)
        return out
    return dequantise_eagerly(packed, out)


def dequantise_eagerly(packed: PackedWeight, out: Tensor) -> Tensor:
    """What `dequantise` gives, by torch alone, on any device."""
    factors = unswizzle(packed.scales, packed.rows, packed.blocks).float() * packed.scale
    values = torch.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=torch.float32, device=out.device)
    byte = torch.arange(256, device=out.device)
    pairs = torch.stack([values[byte >> 4], values[byte & 15]], dim=1)  # [256, 2]
    for chunk in _row_chunks(*out.shape):
        blocks = pairs[packed.codes[chunk].int()].flatten(1).unflatten(1, (-1, BLOCK))
        out[chunk] = (blocks * factors[chunk, :, None]).flatten(1)
    return out


def slice_code_columns(codes: Tensor, columns: slice) -> Tensor:
    """Consecutive columns of a weight's codes. Raises ConfigError unless they begin and end between blocks of 16."""
    _require_whole_blocks(columns, 2 * codes.shape[1])
    return codes[:, columns.start // 2 : columns.stop // 2].contiguous()


def slice_scale_columns(scales: Tensor, columns: slice) -> Tensor:
    """The same of its block scales; `columns` count values."""
    height, width = scales.shape
    _require_whole_blocks(columns, BLOCK * width)
    first, last = columns.start // BLOCK, columns.stop // BLOCK
    if first % TILE_BLOCKS or last % TILE_BLOCKS:
        return swizzle(unswizzle(scales.view(torch.uint8), height, width)[:, first:last]).view(SCALE_DTYPE)
    tiles = scales.view(height // TILE_ROWS, width // TILE_BLOCKS, TILE_ROWS * TILE_BLOCKS)
    return tiles[:, first // TILE_BLOCKS : last // TILE_BLOCKS].reshape(height, -1)


def _require_whole_blocks(columns: slice, total: int) -> None:
    if columns.start % BLOCK or columns.stop % BLOCK:
        raise ConfigError(
            f"columns {columns.start} to {columns.stop} of {total} split a block of {BLOCK} values that share a scale"
        )


def reorder_scale_rows(scales: Tensor, order: Tensor) -> Tensor:
    """Block scales of some rows: row i of the result is row order[i]."""
    row_major = unswizzle(scales.view(torch.uint8), *scales.shape)  # with the padded columns
    return swizzle(row_major[order]).view(SCALE_DTYPE)


class Scratch:
    """One buffer per device and dtype, as large as the largest weight, where the running layer's weight is dequantised.

    Hazard: the next `take` hands out the same memory. That is right because every layer dequantises and multiplies on
    one stream, in order; a second stream would overwrite a weight that is still read.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def take(self, rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """[rows, columns], contiguous, of whatever was there; until the next call."""
        key, size = (device, dtype), rows * columns
        if key not in self._buffers or self._buffers[key].numel() < size:
            self._buffers.pop(key, None)  # before the larger one is asked for
            with torch.inference_mode(False):  # made in inference mode, it could not be written outside it
                self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return self._buffers[key][:size].view(rows, columns)


_scratch = Scratch()


def packed_forms(rows: int, columns: int) -> dict[str, TensorForm]:
    """Of the tensors that hold a packed weight, by their names in a file and in `NVFP4Linear`. Raises ConfigError."""
    if columns % BLOCK:
        raise ConfigError(f"{columns} input features are not whole blocks of {BLOCK} values")
    blocks = columns // BLOCK
    return {
        "weight": TensorForm(torch.uint8, (rows, columns // 2)),
        "weight_scale": TensorForm(SCALE_DTYPE, (rows + -rows % TILE_ROWS, blocks + -blocks % TILE_BLOCKS)),
        "weight_scale_2": TensorForm(torch.float32, ()),
    }


class NVFP4Linear(nn.Module):
    """x W^T from a packed weight; no bias, inference only. Its state is the ComfyUI file's, key by key.

    Never call `to(dtype)` on a model that holds one: it would convert the scales. Devices are fine.
    """

    weight: Tensor  # [N, K/2] u8
    weight_scale: Tensor  # [ceil128(N), ceil4(K/16)] e4m3, swizzled
    weight_scale_2: Tensor  # [] fp32
    pre_quant_scale: Tensor | None  # [K], multiplies the input; allocated in bf16, as published

    def __init__(
        self, in_features: int, out_features: int, has_pre_scale: bool = False, full_precision: bool = False
    ) -> None:
        """`full_precision` keeps the activation out of FP4 (the file's marker full_precision_matrix_mult)."""
        super().__init__()
        forms = packed_forms(out_features, in_features)
        self.in_features, self.out_features, self.full_precision = in_features, out_features, full_precision
        self.is_native = False  # whether to multiply in FP4; decided at start, for all ranks alike
        for name, form in forms.items():
            self.register_buffer(name, torch.empty(form.shape, dtype=form.dtype))
        pre_scale = torch.empty(in_features, dtype=torch.bfloat16) if has_pre_scale else None
        self.register_buffer("pre_quant_scale", pre_scale)

    @property
    def packed(self) -> PackedWeight:
        assert self.weight_scale.dtype == SCALE_DTYPE, "to(dtype) has converted the scales"
        return PackedWeight(self.weight, self.weight_scale, self.weight_scale_2)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] bf16 or fp32. Returns [..., N] in the same dtype."""
        if self.pre_quant_scale is not None:
            x = (x * self.pre_quant_scale).to(x.dtype)
        packed = self.packed
        if self._multiplies_in_fp4(x):
            return fp4_gemm(x.flatten(0, -2), packed).view(*x.shape[:-1], packed.rows)
        weight = _scratch.take(packed.rows, packed.columns, x.device, x.dtype)
        return F.linear(x, dequantise(packed, x.dtype, weight))

    def _multiplies_in_fp4(self, x: Tensor) -> bool:
        fits = self.in_features % _FP4_COLUMNS == 0 and self.out_features % _FP4_ROWS == 0 and x.numel() > 0
        return self.is_native and fits and not self.full_precision and x.dtype == torch.bfloat16


def _multiply_by(scale: Tensor, out: Tensor) -> Tensor:
    """Multiply in place by a scale [] fp32, in fp32."""
    # As a vector of one: a scalar tensor takes the other's dtype, and CUDA then rounds it to bf16 (up to 0.2 % off).
    return out.mul_(scale.reshape(1))


def fp4_gemm(x: Tensor, packed: PackedWeight) -> Tensor:
    """x [M, K] bf16, quantised here with one scale for all of it, times the weight in FP4: [M, N] bf16.

    Needs a GPU that can (`probe_fp4`). Never waits for it.
    """
    activation = _quantise(x, _largest(x))
    codes = F.pad(activation.codes, (0, 0, 0, -activation.rows % _FP4_ROWS))  # scales are padded further already
    out = torch._scaled_mm(
        codes.view(torch.float4_e2m1fn_x2),
        packed.codes.view(torch.float4_e2m1fn_x2).t(),
        scale_a=activation.scales,
        scale_b=packed.scales,
        out_dtype=torch.bfloat16,
    )
    return _multiply_by(activation.scale * packed.scale, out[: activation.rows])


@cache
def probe_fp4(device: torch.device) -> bool:
    """Whether `fp4_gemm` runs on this device and is right: tried once a process."""
    obstacle = _fp4_obstacle(device)
    if obstacle is None:
        log.info("FP4 products are native on %s", device)
    else:
        log.info("FP4 weights are dequantised on %s, which does not multiply them natively: %s", device, obstacle)
    return obstacle is None


def _fp4_obstacle(device: torch.device) -> str | None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        return "this torch has no float4_e2m1fn_x2"
    return find_obstacle(_fp4_error, device, _FP4_TOLERANCE)


def _fp4_error(device: torch.device) -> float:
    """Relative L2 distance of `fp4_gemm` from the product of its dequantised operands.

    Ragged rows, several tiles each way, and blocks of unlike sizes, so that no wrong layout goes unseen.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(-3, 4, (200 + 384, 512 // BLOCK, 1), generator=generator).exp2()
    blocks = torch.randn(200 + 384, 512 // BLOCK, BLOCK, generator=generator) * sizes
    x, weight = blocks.flatten(1).to(device, torch.bfloat16).split([200, 384])
    packed = quantise(weight)
    expected = dequantise(_quantise(x, _largest(x)), torch.float32) @ dequantise(packed, torch.float32).T
    return float((fp4_gemm(x, packed) - expected).norm() / expected.norm())
