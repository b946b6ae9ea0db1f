"""The scale of values that become e4m3, as `h3.fp8` finds it, for kernels."""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

from h3.fp8 import LARGEST, SMALLEST_SCALE

_PER_LARGEST = tl.constexpr(1 / LARGEST)
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def find_scale(largest):  # type: ignore[no-untyped-def]
    return tl.maximum(largest * _PER_LARGEST, _SMALLEST_SCALE)
