"""Tensor parallelism: each rank holds a part of every linear layer of the blocks, packed ones stay packed.

Between the layers tokens are sharded, as in every mode. Attention and MLP alike bring all rows together, compute with
this rank's part of the weights, and end with a sum over ranks of which each keeps its own rows:

    qkv         rows of this rank's heads, in q, k and v       all rows, its heads
    out_proj    columns of its heads                           all rows, a summand of each
    fc1         rows of its values, in gate and in value       all rows, its values
    fc2         columns of its values                          all rows, a summand of each

A summand is rounded to the model's dtype, the sum is made in fp32 in a fixed order and rounded once: the same bits in
every run, but not those of one device. A projection's bias is no part of the summands; it is added once, to the sum.
Trade-off: 1/W of the blocks' weights a rank, for 4 C (W - 1) values sent per token and block, where Ulysses sends
4 H D (W - 1) / W: 0.75 W times as many. For GPUs that the weights do not fit on.
Source: Megatron-LM with sequence parallelism, arXiv 2205.05198.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from h3.collectives import gather_rows, reduce_rows
from h3.config import DenoiserConfig
from h3.fp8 import RoundedRows, Rows
from h3.model import Block, Denoiser
from h3.nvfp4 import TILE_ROWS, NVFP4Linear, reorder_scale_rows, slice_code_columns, slice_scale_columns
from h3.parallel.tokens import TokenShards, shard_tokens
from h3.partition import WeightPartition, split_weights
from h3.precision import Precision
from h3.weights import Recipe

# How many FFN values lie between two places where the MLP may be cut.
_UNITS = {
    Precision.FP32: 1,
    # 16 bytes. Any cut would be right, but with rows of 2,389 values (six ranks) cuBLAS takes kernels for unaligned
    # memory: fc1 3.35 ms instead of 1.14, fc2 3.85 instead of 0.60 (H200, 17,780 tokens).
    Precision.BF16: 8,
    Precision.FP8: 16,  # what native products need
    Precision.NVFP4: TILE_ROWS,  # whole tiles of block scales, in fc1's rows and in fc2's columns
}

Cut = Callable[[Tensor], Tensor]


def partition_weights(config: DenoiserConfig, precision: Precision, world_size: int) -> WeightPartition:
    """Raises PartitionError if a rank would have no head or no part of the MLP."""
    heads, unit = config.num_attention_heads, _UNITS[precision]
    return split_weights(heads, config.attention_head_dim, config.ffn_dim, world_size, unit=unit)


def cut_weights(
    model: Denoiser, recipes: dict[str, Recipe], partition: WeightPartition, rank: int
) -> dict[str, Recipe]:
    """Leave this rank's part of a model on `meta`; returns recipes that give just that, one layer at a time."""
    cut = dict(recipes)
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        block.attn.heads = partition.heads.sizes[rank]
        parts = {
            "attn.qkv_proj": _cut_rows(block.attn.qkv_proj, partition.qkv_rows(rank)),
            "attn.out_proj": _cut_columns(block.attn.out_proj, partition.out_columns(rank)),
            "mlp.fc1": _cut_rows(block.mlp.fc1, partition.fc1_rows(rank)),
            "mlp.fc2": _cut_columns(block.mlp.fc2, partition.fc2_columns(rank)),
        }
        for layer, (linear, cuts) in parts.items():
            block.set_submodule(layer, linear)
            for leaf, how in cuts.items():
                name = f"blocks.{number}.{layer}.{leaf}"
                cut[name] = recipes[name].then(how)
    return cut


def _cut_rows(linear: nn.Module, ranges: tuple[slice, ...]) -> tuple[nn.Module, dict[str, Cut]]:
    """A linear layer on `meta` with these of its outputs, and how its tensors are made of the whole one's."""
    outputs = sum(rows.stop - rows.start for rows in ranges)
    if isinstance(linear, NVFP4Linear):
        return _resized(linear, linear.in_features, outputs), {
            "weight": partial(_keep_rows, ranges=ranges),
            "weight_scale": lambda scales: reorder_scale_rows(scales, _indices(ranges, scales.device)),
        }
    assert isinstance(linear, nn.Linear)
    names = ("weight",) if linear.bias is None else ("weight", "bias")
    return _resized(linear, linear.in_features, outputs), dict.fromkeys(names, partial(_keep_rows, ranges=ranges))


def _cut_columns(linear: nn.Module, columns: slice) -> tuple[nn.Module, dict[str, Cut]]:
    """The same with these of its inputs. A bias stays whole."""
    inputs = columns.stop - columns.start
    if isinstance(linear, NVFP4Linear):
        return _resized(linear, inputs, linear.out_features), {
            "weight": partial(slice_code_columns, columns=columns),
            "weight_scale": partial(slice_scale_columns, columns=columns),
        }
    assert isinstance(linear, nn.Linear)
    return _resized(linear, inputs, linear.out_features), {"weight": lambda weight: weight[:, columns].contiguous()}


def _resized(linear: nn.Linear | NVFP4Linear, inputs: int, outputs: int) -> nn.Module:
    with torch.device("meta"):
        if isinstance(linear, NVFP4Linear):
            assert linear.pre_quant_scale is None, "the denoiser has none"
            return NVFP4Linear(inputs, outputs, full_precision=linear.full_precision)
        return nn.Linear(inputs, outputs, bias=linear.bias is not None, dtype=linear.weight.dtype)


def _keep_rows(tensor: Tensor, ranges: tuple[slice, ...]) -> Tensor:
    return torch.cat([tensor[rows] for rows in ranges])


def _indices(ranges: tuple[slice, ...], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(rows.start, rows.stop, device=device) for rows in ranges])


def share_layers(model: Denoiser, group: dist.ProcessGroup) -> None:
    """Run a model that `cut_weights` has cut for these ranks over `group`."""
    shards = shard_tokens(model, group, layers_see_all_rows=True)
    for block in model.blocks:
        assert isinstance(block, Block)
        sum_over_ranks(block.attn, block.attn.out_proj, shards)
        sum_over_ranks(block.mlp, block.mlp.fc2, shards)


def sum_over_ranks(layer: nn.Module, projection: nn.Module, shards: TokenShards) -> None:
    """Let a layer, whose last step is `projection`, take this rank's rows and give the sum of all ranks' for them."""
    if dist.get_world_size(shards.group) == 1:
        return  # added to the rounded sum, a bias would give other bits
    on_all_rows, bias = layer.forward, getattr(projection, "bias", None)
    if bias is not None:
        projection.register_parameter("bias", None)  # else it would be added once a rank

    def forward(x: Rows, *rest: object) -> Tensor:
        summand = on_all_rows(_gather(x, shards), *rest)
        total = reduce_rows(summand, shards.tokens, shards.group)
        return total if bias is None else total + bias

    layer.forward = forward  # applied from outside, by design


def _gather(x: Rows, shards: TokenShards) -> Rows:
    """Rows that are rounded stay so, at half the bytes: each has its scale, whatever rows are beside it."""
    if not isinstance(x, RoundedRows):
        return gather_rows(x, shards.tokens, shards.group)
    # As bytes, so that padding them and putting them together needs nothing that torch may lack for e4m3.
    values = gather_rows(x.values.view(torch.uint8), shards.tokens, shards.group).view(x.values.dtype)
    return RoundedRows(values, gather_rows(x.scale, shards.tokens, shards.group))
