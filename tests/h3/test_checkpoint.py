import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from h3.checkpoint import INDEX_NAME, ModelFolder, find_tensors, interleave_qkv, load_denoiser, split_qkv
from h3.errors import CheckpointError
from h3.tiny import DENOISER, write_tiny

CPU = torch.device("cpu")
QKV = "blocks.0.attn.qkv_proj.weight"


def shard_with(folder, tensor):
    return folder / json.loads((folder / INDEX_NAME).read_text())["weight_map"][tensor]


def edit_shard(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_the_layout_is_the_official_one(tiny):
    shards = sorted(path.name for path in tiny.transformer.glob("*.safetensors"))
    assert shards == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert json.loads((tiny.transformer / "config.json").read_text())["num_attention_heads"] == 9
    assert set(find_tensors(tiny.transformer)) == set(
        json.loads((tiny.transformer / INDEX_NAME).read_text())["weight_map"]
    )


def test_qkv_rows_are_interleaved_in_the_file_and_apart_in_the_model(tiny):
    stored = load_file(shard_with(tiny.transformer, QKV))[QKV]
    heads, dim = DENOISER.num_attention_heads, DENOISER.attention_head_dim
    loaded = load_denoiser(tiny.transformer, CPU).state_dict()[QKV]
    q_of_head_1 = stored[3 * dim : 4 * dim]
    k_of_head_0 = stored[dim : 2 * dim]
    assert torch.equal(loaded[dim : 2 * dim], q_of_head_1)
    assert torch.equal(loaded[heads * dim : heads * dim + dim], k_of_head_0)
    assert torch.equal(split_qkv(interleave_qkv(loaded, DENOISER), DENOISER), loaded)


def test_islands_are_fp32_and_the_rest_is_bf16(tiny):
    dtypes = {name: tensor.dtype for name, tensor in load_denoiser(tiny.transformer, CPU).state_dict().items()}
    islands = {name.rsplit(".", 1)[0] for name, dtype in dtypes.items() if dtype == torch.float32}
    assert islands == {
        "audio_patch_proj",
        "final_layer.audio_out",
        "final_layer.video_out",
        "rope",
        "time_embedder.proj_in",
        "time_embedder.proj_out",
        "video_patch_proj",
    }


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path):
    folders = [write_tiny(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    files = [
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        }
        for name in "abc"
    ]
    assert files[0] == files[1]
    assert folders[0].digest() == folders[1].digest() != folders[2].digest()


@pytest.mark.parametrize("part", ["transformer", "text_encoder", "tokenizer", "video_vae", "audio_vae"])
def test_the_digest_covers_every_part_and_its_configuration(tiny, tiny_copy, part):
    assert ModelFolder.below(tiny_copy).digest() == tiny.digest()
    config = next((tiny_copy / "FL2VA" / part).glob("*.json"))
    config.write_text(config.read_text() + " ")
    assert ModelFolder.below(tiny_copy).digest() != tiny.digest()


def test_a_checkpoint_is_never_written_over(tiny_copy):
    with pytest.raises(CheckpointError, match="holds a checkpoint"):
        write_tiny(tiny_copy, seed=1)


@pytest.mark.parametrize("part", ["text_encoder", "video_vae", "audio_vae"])
def test_a_part_without_its_config_is_named(tiny_copy, part):
    (tiny_copy / "FL2VA" / part / "config.json").unlink()
    with pytest.raises(CheckpointError, match=f"{part}/config.json is missing"):
        ModelFolder.below(tiny_copy).check()


def test_a_denoiser_of_another_size_than_its_config_is_refused_from_the_headers(tiny_copy):
    config = tiny_copy / "FL2VA" / "transformer" / "config.json"
    config.write_text(config.read_text().replace('"num_layers": 4', '"num_layers": 5'))
    with pytest.raises(CheckpointError, match=r"lacks tensor blocks.4.\S+ \(and 9 more\)"):
        ModelFolder.below(tiny_copy).check()


def test_a_partition_folder_is_found_from_the_root_and_from_itself(tiny):
    partition = tiny.transformer.parent
    assert ModelFolder.below(partition) == ModelFolder.below(partition.parent) == tiny


@pytest.mark.parametrize("part", ["transformer", "text_encoder", "video_vae", "audio_vae"])
def test_a_shard_cut_short_is_named_with_its_tensor(tiny_copy, part):
    shard = sorted((tiny_copy / "FL2VA" / part).glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=rf"{shard.name} is cut short in tensor \S+, which ends at byte \d+"):
        ModelFolder.below(tiny_copy).check()


def test_a_missing_shard_is_named_with_a_tensor_that_it_holds(tiny_copy):
    folder = tiny_copy / "FL2VA" / "transformer"
    shard = shard_with(folder, QKV)
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name} is missing, which holds tensor \S+"):
        ModelFolder.below(tiny_copy).check()


def test_a_file_that_ends_in_its_header_is_named(tiny_copy):
    shard = next((tiny_copy / "FL2VA" / "audio_vae").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(
        CheckpointError, match=rf"{shard.name} \(50 bytes\) is no safetensors file or ends in its header"
    ):
        ModelFolder.below(tiny_copy).check()


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"config.json is missing: is this the folder of an H3 checkpoint\?"):
        ModelFolder.below(tmp_path).check()


def test_a_config_without_a_size_is_refused_by_its_name(tiny_copy):
    config = tiny_copy / "FL2VA" / "transformer" / "config.json"
    config.write_text(config.read_text().replace('"ffn_dim"', '"ffn"'))
    with pytest.raises(CheckpointError, match="ffn_dim: Field required"):
        ModelFolder.below(tiny_copy).check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({QKV: t[QKV].float()}), rf"{QKV} is .* torch.float32, expected .* torch.bfloat16"),
        (lambda t: t.update({QKV: t[QKV][:-384]}), rf"{QKV} is \[3072, 192\] .*, expected \[3456, 192\]"),
        (
            lambda t: t.update({"blocks.0.attn.bias": torch.zeros(3)}),
            r"holds tensor blocks.0.attn.bias .* no place for",
        ),
    ],
)
def test_a_tensor_of_another_form_is_named(tiny_copy, change, message):
    folder = tiny_copy / "FL2VA" / "transformer"
    edit_shard(shard_with(folder, QKV), change)
    with pytest.raises(CheckpointError, match=message):
        load_denoiser(folder, CPU)
