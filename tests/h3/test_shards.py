"""One rank's part of the weights, as it is read from files of every family. Needs no ranks."""

from functools import partial

import pytest
import torch

from h3.checkpoint import DenoiserFiles, load_denoiser
from h3.convert import Target
from h3.families import QkvOrder
from h3.nvfp4 import NVFP4Linear, dequantise, quantise
from h3.parallel.mode import Mode, trim_for
from h3.parallel.tensor import partition_weights
from h3.precision import Precision
from h3.untrained import Untrained
from tests.h3.checkpoint_files import SMALL, comfy_tensors, interleave, mixed_formats, quantise_layers, write_comfy
from tests.h3.packed import take_columns, take_rows
from tests.h3.random_models import MEDIUM_PRUNED

CPU = torch.device("cpu")
LAYERS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
FULL_PRECISION = {"attn.qkv_proj", "mlp.fc2"}  # one that is cut by rows, one by columns
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
@pytest.mark.parametrize("world_size", [2, 6, 7, 8])
def test_a_rank_reads_its_part_of_a_packed_file_packed_or_widened(medium, precision, world_size):
    path = medium.paths[Target.COMFY_NVFP4]
    whole = load_denoiser(path, CPU, precision)
    partition = partition_weights(MEDIUM_PRUNED, precision, world_size)
    for rank in (0, world_size - 1):
        assert_is_part(load_part(DenoiserFiles.open(path), precision, rank, world_size), whole, partition, rank)


@pytest.mark.parametrize("precision", [Precision.NVFP4, Precision.BF16])
def test_a_rank_reads_its_heads_from_a_packed_file_that_interleaves_q_k_and_v(medium, precision):
    """The file holds them apart; read as the other order, it is the file of another model."""
    files = DenoiserFiles.open(medium.paths[Target.COMFY_NVFP4], QkvOrder.INTERLEAVED)
    whole, as_stored = files.load(CPU, precision), load_denoiser(files.path, CPU, precision)
    for block, stored in zip(whole.blocks, as_stored.blocks, strict=True):
        qkv = weight_of(block, "attn.qkv_proj")
        assert torch.equal(interleave(qkv, MEDIUM_PRUNED), weight_of(stored, "attn.qkv_proj"))
    partition = partition_weights(MEDIUM_PRUNED, precision, 2)
    for rank in range(2):
        assert_is_part(load_part(files, precision, rank, 2), whole, partition, rank)


@pytest.fixture(scope="module")
def mixed_file(medium, tmp_path_factory):
    """Blocks in NVFP4, plain, fp8 and int8 by turns; of the packed layers, two are never to be multiplied in FP4."""
    tensors, markers, _ = quantise_layers(comfy_tensors(medium.pruned), mixed_formats(MEDIUM_PRUNED))
    for layer in FULL_PRECISION:
        markers[f"blocks.0.{layer}"]["full_precision_matrix_mult"] = True
    return write_comfy(tmp_path_factory.mktemp("mixed") / "x.safetensors", tensors, markers)


@pytest.mark.parametrize("precision", [Precision.NVFP4, Precision.BF16])
def test_a_rank_reads_its_part_of_a_file_with_layers_in_several_formats(mixed_file, precision):
    whole = load_denoiser(mixed_file, CPU, precision)
    partition = partition_weights(MEDIUM_PRUNED, precision, 2)
    for rank in range(2):
        part = load_part(DenoiserFiles.open(mixed_file), precision, rank, 2)
        assert_is_part(part, whole, partition, rank)
        packed = [number for number, block in enumerate(part.blocks) if isinstance(block.mlp.fc2, NVFP4Linear)]
        assert packed == ([0] if precision is Precision.NVFP4 else [])


def test_a_layer_that_is_to_stay_out_of_fp4_stays_so_in_parts(mixed_file):
    part = load_part(DenoiserFiles.open(mixed_file), Precision.NVFP4, 1, 2)
    assert {layer for layer in LAYERS if part.blocks[0].get_submodule(layer).full_precision} == FULL_PRECISION


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
    rows = take_rows(packed, torch.arange(start, stop))
    assert torch.equal(rows.codes, packed.codes[start:stop])
    assert torch.equal(rows.scales.view(torch.uint8), tiles[start:stop])
    columns = take_columns(packed, slice(start, stop))
    assert torch.equal(columns.codes, packed.codes[:, start // 2 : stop // 2])
    bands = tiles.view(5, 10, 512)[:, start // 64 : stop // 64]
    assert torch.equal(columns.scales.view(torch.uint8).view(5, -1, 512), bands)
