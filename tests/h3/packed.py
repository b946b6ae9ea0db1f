"""Parts of a packed weight, put together from parts of its tensors as `h3.parallel.tensor` cuts them."""

from torch import Tensor

from h3.nvfp4 import PackedWeight, reorder_scale_rows, slice_code_columns, slice_scale_columns


def take_columns(packed: PackedWeight, columns: slice) -> PackedWeight:
    codes, scales = slice_code_columns(packed.codes, columns), slice_scale_columns(packed.scales, columns)
    return PackedWeight(codes, scales, packed.scale)


def take_rows(packed: PackedWeight, order: Tensor) -> PackedWeight:
    return PackedWeight(packed.codes[order], reorder_scale_rows(packed.scales, order), packed.scale)
