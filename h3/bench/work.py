"""What a denoise step has to do, part by part: operations and bytes that no implementation is spared. Arithmetic.

Two operations for a multiply and an add. Bytes are those of inputs and results, read and written once, as the parts are
cut here: each product and attention for itself, and what lies between them in five passes over the rows.
"""

from dataclasses import dataclass
from enum import StrEnum

from h3.attention import AttentionName
from h3.config import DenoiserConfig
from h3.placement import DTYPE_BYTES
from h3.precision import Precision
from h3.sequence import Layout


class Part(StrEnum):
    """Of a step, in the order of a block."""

    QKV = "qkv product"
    ATTENTION = "attention"
    OUT = "out product"
    FC1 = "fc1 product"
    FC2 = "fc2 product"
    POINTWISE = "between the products"
    TRANSPORT = "transport"  # between ranks, waiting for the slowest included
    REST = "outside the blocks"  # patches, heads, the sampler


PRODUCTS = (Part.QKV, Part.OUT, Part.FC1, Part.FC2)
_WEIGHT_BYTES = {Precision.FP32: 4.0, Precision.BF16: 2.0, Precision.FP8: 1.0, Precision.NVFP4: 0.5 + 1 / 16}


@dataclass(frozen=True, slots=True)
class Work:
    """Of one part of a step, on all ranks together."""

    operations: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device does at best, measured on it: the fastest of short runs, before its clock falls."""

    bf16_per_s: float  # operations
    fp8_per_s: float | None  # None: it has no such products
    bytes_per_s: float  # read and written by a copy

    def operations_per_s(self, part: Part, precision: Precision, attention: str) -> float:
        """Of the unit that does a part's."""
        rounds = (
            precision is Precision.FP8
            if part in PRODUCTS
            else part is Part.ATTENTION and attention == AttentionName.FA3_FP8
        )
        return self.fp8_per_s if rounds and self.fp8_per_s else self.bf16_per_s


def count_work(config: DenoiserConfig, layout: Layout, precision: Precision) -> dict[Part, Work]:
    """Of one step, transport left out."""
    rows, width, inner, ffn = layout.tokens, config.hidden_size, config.attention_dim, config.ffn_dim
    blocks = config.num_layers

    def product(columns: int, outputs: int) -> Work:
        moved = DTYPE_BYTES * rows * (columns + outputs) + _WEIGHT_BYTES[precision] * columns * outputs
        return Work(blocks * 2.0 * rows * columns * outputs, blocks * moved)

    # Read and written, of each row: the stream is normed; q and k are; the MLP's gate and value become one; the stream
    # takes up attention, and is normed; it takes up the MLP.
    elements = 2 * width + 4 * inner + 3 * ffn + 4 * width + 3 * width
    targets = (
        layout.geometry.video_tokens * config.patch_dim + 2 * layout.geometry.audio_latents * config.audio_in_channels
    )
    return {
        Part.QKV: product(width, 3 * inner),
        Part.ATTENTION: Work(blocks * 4.0 * rows**2 * inner, blocks * 4.0 * DTYPE_BYTES * rows * inner),
        Part.OUT: product(inner, width),
        Part.FC1: product(width, 2 * ffn),
        Part.FC2: product(ffn, width),
        Part.POINTWISE: Work(0.0, blocks * float(DTYPE_BYTES) * rows * elements),
        Part.REST: Work(2.0 * targets * width * 2, float(DTYPE_BYTES) * rows * width * 4),
    }


def show_tera(rate: float) -> str:
    """`788 T`, `0.403 T`."""
    tera = rate / 1e12
    return f"{tera:,.0f} T" if tera >= 100 else f"{tera:.3g} T"


def floor_s(work: Work, operations_per_s: float, bytes_per_s: float) -> float:
    """The time that the part cannot be done in less than."""
    return max(work.operations / operations_per_s, work.bytes / bytes_per_s)
