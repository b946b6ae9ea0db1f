"""One rank's part of the weights, as it is read from files of every family. Needs no ranks."""

from functools import partial

import pytest
import torch

from h3.checkpoint import DenoiserFiles, load_denoiser
from h3.convert import Target
from h3.errors import ConfigError
from h3.nvfp4 import NVFP4Linear, dequantise, quantise, reorder_rows, slice_columns
from h3.parallel.mode import Mode, trim_for
from h3.parallel.tensor import partition_weights
from h3.precision import Precision
from h3.untrained import Untrained
from tests.h3.checkpoint_files import SMALL
from tests.h3.random_models import MEDIUM_PRUNED

CPU = torch.device("cpu")
LAYERS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
PLAIN = (Target.OFFICIAL, Target.DIFFUSERS, Target.COMFY_PRUNED)


def load_part(source, precision, rank, world_size):
    return source.load(CPU, precision, trim=trim_for(Mode.TENSOR, source.config, precision, rank, world_size))


def weight_of(block, layer):
    linear = block.get_submodule(layer)
    return dequantise(linear.packed, torch.float32) if isinstance(linear, NVFP4Linear) else linear.weight


def assert_is_part(part, whole, partition, rank):
    """Of each layer of each block; what lies outside the blocks' four layers is whole on every rank."""
    heads, values = partition.out_columns(rank), partition.ffn.owned(rank)
    for block, complete in zip(part.blocks, whole.blocks, strict=True):
        of = partial(weight_of, complete)
        qkv, fc1 = of("attn.qkv_proj").unflatten(0, (3, -1)), of("mlp.fc1").unflatten(0, (2, -1))
        assert torch.equal(weight_of(block, "attn.qkv_proj"), qkv[:, heads].flatten(0, 1))
        assert torch.equal(weight_of(block, "attn.out_proj"), of("attn.out_proj")[:, heads])
        assert torch.equal(weight_of(block, "mlp.fc1"), fc1[:, values].flatten(0, 1))
        assert torch.equal(weight_of(block, "mlp.fc2"), of("mlp.fc2")[:, values])
    everything = whole.state_dict()
    for name, tensor in part.state_dict().items():
        if not (name.startswith("blocks.") and any(layer in name for layer in LAYERS)):
            assert torch.equal(tensor, everything[name]), name


@pytest.mark.parametrize("target", PLAIN)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_rank_reads_its_heads_and_its_values_from_any_family(small, target, world_size):
    whole = load_denoiser(small.paths[target], CPU)
    partition = partition_weights(SMALL, Precision.BF16, world_size)
    for rank in range(world_size):
        part = load_part(DenoiserFiles.open(small.paths[target]), Precision.BF16, rank, world_size)
        assert_is_part(part, whole, partition, rank)


@pytest.mark.parametrize("precision", [Precision.NVFP4, Precision.BF16])
@pytest.mark.parametrize("world_size", [2, 6, 7])
def test_a_rank_reads_its_part_of_a_packed_file_packed_or_widened(medium, precision, world_size):
    path = medium.paths[Target.COMFY_NVFP4]
    whole = load_denoiser(path, CPU, precision)
    partition = partition_weights(MEDIUM_PRUNED, precision, world_size)
    for rank in (0, world_size - 1):
        assert_is_part(load_part(DenoiserFiles.open(path), precision, rank, world_size), whole, partition, rank)


def test_packed_parts_are_packed_and_add_up_to_the_whole(medium):
    files = DenoiserFiles.open(medium.paths[Target.COMFY_NVFP4])
    whole, parts = files.load(CPU), [load_part(files, Precision.NVFP4, rank, 2) for rank in range(2)]
    for layer in LAYERS:
        linears = [part.blocks[1].get_submodule(layer) for part in parts]
        assert all(isinstance(linear, NVFP4Linear) for linear in linears)
        for name in ("weight", "weight_scale"):
            total = whole.blocks[1].get_submodule(layer).get_buffer(name).numel()
            # Scales are padded to whole tiles, of which nine heads have no even number.
            assert total <= sum(linear.get_buffer(name).numel() for linear in linears) <= 1.02 * total
        assert len({linear.weight_scale_2.item() for linear in linears}) == 1


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.NVFP4, Precision.FP8])
def test_ranks_that_draw_their_weights_hold_parts_of_one_model(precision):
    config = MEDIUM_PRUNED.model_copy(update={"num_layers": 1})
    partition = partition_weights(config, precision, 2)
    part = load_part(Untrained(config), precision, 1, 2)
    if precision is Precision.FP8:  # rounded after it is cut
        assert part.blocks[0].mlp.fc2.weight.shape == (config.hidden_size, partition.ffn.sizes[1])
    else:
        assert_is_part(part, Untrained(config).load(CPU, precision), partition, 1)


def test_a_part_takes_the_memory_of_a_part(medium):
    """Whatever was cut from larger tensors must not keep them alive."""
    part = load_part(DenoiserFiles.open(medium.paths[Target.OFFICIAL]), Precision.BF16, 0, 3)
    for name, tensor in part.state_dict().items():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


@pytest.mark.parametrize(("start", "stop"), [(128, 384), (0, 128), (256, 640)])
def test_whole_tiles_keep_the_bytes_of_the_packed_weight(start, stop):
    """Such rows are a range of the file's bytes, such columns one of each band of 128 rows."""
    packed = quantise(torch.randn(640, 640, generator=torch.Generator().manual_seed(1)))
    tiles = packed.scales.view(torch.uint8)
    rows = reorder_rows(packed, torch.arange(start, stop))
    assert torch.equal(rows.codes, packed.codes[start:stop])
    assert torch.equal(rows.scales.view(torch.uint8), tiles[start:stop])
    columns = slice_columns(packed, slice(start, stop))
    assert torch.equal(columns.codes, packed.codes[:, start // 2 : stop // 2])
    bands = tiles.view(5, 10, 512)[:, start // 64 : stop // 64]
    assert torch.equal(columns.scales.view(torch.uint8).view(5, -1, 512), bands)


def test_columns_that_split_a_block_of_values_are_refused():
    with pytest.raises(ConfigError, match="columns 8 to 64 of 64 split a block of 16 values"):
        slice_columns(quantise(torch.randn(4, 64)), slice(8, 64))
