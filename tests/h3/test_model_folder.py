"""Where the parts of a model are found, what is refused of them, and what identifies them."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import h3render
from h3.config import DenoiserConfig
from h3.convert import Target
from h3.errors import CheckpointError
from h3.model_folder import ModelFolder, digest, find_denoiser
from h3.runner import H3Runner
from h3.tiny import write_tiny
from h3.untrained import TINY
from h3.vae import load_video_vae
from tests.h3.checkpoint_files import QKV
from worker.mgpu.errors import RunnerError

PARTS = ["transformer", "text_encoder", "tokenizer", "video_vae", "audio_vae"]


def check(root):
    return ModelFolder.below(root).check()


def refusal(root):
    with pytest.raises(CheckpointError) as refused:
        check(root)
    return str(refused.value)


def part_of(root, name):
    return root / "FL2VA" / name


def shard_with(folder, tensor):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / index["weight_map"][tensor]


def edit_tensors(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def edit_index(folder, gone):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"][gone]
    path.write_text(json.dumps(index))


def make_text_encoder_a_file(root):
    """Without its folder; what states its sizes lies beside it."""
    folder = part_of(root, "text_encoder")
    tensors = {}
    for shard in folder.glob("*.safetensors"):
        tensors |= load_file(shard)
    save_file(tensors, folder.with_suffix(".safetensors"))
    shutil.move(folder / "config.json", folder.parent / "config.json")
    shutil.rmtree(folder)
    return folder.parent / "config.json"


class TestPlaces:
    def test_parts_lie_below_the_root_and_below_the_partition_itself(self, tiny):
        partition = tiny.transformer.parent
        assert ModelFolder.below(partition) == ModelFolder.below(partition.parent) == tiny
        assert [path.name for path in (tiny.transformer, tiny.video_vae)] == ["transformer", "video_vae"]

    def test_diffusers_has_another_name_for_the_video_vae(self, tmp_path):
        for name in ("transformer", "vae"):
            (tmp_path / name).mkdir()
        assert ModelFolder.below(tmp_path).video_vae == tmp_path / "vae"
        (tmp_path / "video_vae").mkdir()
        assert ModelFolder.below(tmp_path).video_vae == tmp_path / "video_vae"

    def test_a_part_may_be_one_file(self, tmp_path):
        for name in ("transformer", "text_encoder"):
            (tmp_path / f"{name}.safetensors").touch()
        parts = ModelFolder.below(tmp_path)
        assert parts.transformer == tmp_path / "transformer.safetensors"
        assert parts.text_encoder == tmp_path / "text_encoder.safetensors"
        assert parts.audio_vae == tmp_path / "audio_vae"

    def test_a_denoiser_is_found_below_a_root_or_is_the_path_itself(self, tiny, small):
        root = tiny.transformer.parents[1]
        assert find_denoiser(root) == find_denoiser(root / "FL2VA") == tiny.transformer
        for path in [tiny.transformer, *small.paths.values()]:
            assert find_denoiser(path) == path

    def test_the_untrained_model_is_in_the_official_layout(self, tiny):
        shards = sorted(path.name for path in tiny.transformer.glob("*.safetensors"))
        assert len(shards) > 1
        assert shards == [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
        config = json.loads((tiny.transformer / "config.json").read_text())
        assert config["num_attention_heads"] == TINY.num_attention_heads


class TestCheck:
    def test_a_whole_model_gives_the_denoisers_sizes(self, tiny):
        assert tiny.check() == TINY
        assert isinstance(tiny.check(), DenoiserConfig)

    def test_a_whole_model_is_named_by_its_digest(self, tiny):
        done = CliRunner().invoke(h3render.app, ["checkpoint", "check", str(tiny.transformer.parents[1])])
        assert (done.exit_code, done.stdout) == (0, f"whole, digest {tiny.digest()}\n")

    def test_a_model_that_is_not_whole_is_refused_by_the_command(self, tiny_copy):
        (part_of(tiny_copy, "tokenizer") / "tokenizer.json").unlink()
        done = CliRunner().invoke(h3render.app, ["checkpoint", "check", str(tiny_copy)])
        assert done.exit_code == 2
        assert done.stderr == f"{tiny_copy}/FL2VA/tokenizer/tokenizer.json is missing: fetch it again\n"

    @pytest.mark.parametrize("target", [Target.DIFFUSERS, Target.COMFY_PRUNED, Target.COMFY_NVFP4])
    def test_the_denoiser_may_be_of_any_format(self, tiny_copy, small, target):
        shutil.rmtree(part_of(tiny_copy, "transformer"))
        source, name = small.paths[target], "transformer" + small.paths[target].suffix
        (shutil.copytree if source.is_dir() else shutil.copy)(source, part_of(tiny_copy, name))
        assert check(tiny_copy) == small.model_in(target).config

    @pytest.mark.parametrize("part", ["transformer", "text_encoder", "video_vae", "audio_vae"])
    def test_a_part_without_its_config_is_named(self, tiny_copy, part):
        (part_of(tiny_copy, part) / "config.json").unlink()
        assert f"{part}/config.json is missing" in refusal(tiny_copy)

    @pytest.mark.parametrize("part", PARTS)
    def test_a_part_that_is_missing_is_named(self, tiny_copy, part):
        shutil.rmtree(part_of(tiny_copy, part))
        assert f"FL2VA/{part}" in refusal(tiny_copy)

    @pytest.mark.parametrize("part", ["transformer", "text_encoder", "video_vae", "audio_vae"])
    def test_a_shard_cut_short_is_named_with_its_tensor(self, tiny_copy, part):
        shard = sorted(part_of(tiny_copy, part).rglob("*.safetensors"))[0]
        shard.write_bytes(shard.read_bytes()[:-100])
        assert f"{shard.name} is cut short in tensor " in refusal(tiny_copy)

    @pytest.mark.parametrize("part", ["transformer", "text_encoder"])
    def test_a_missing_shard_is_named_with_a_tensor_that_it_holds(self, tiny_copy, part):
        shard = sorted(part_of(tiny_copy, part).glob("*.safetensors"))[1]
        shard.unlink()
        assert f"{shard.name} is missing, which holds tensor " in refusal(tiny_copy)

    @pytest.mark.parametrize("part", ["video_vae", "audio_vae"])
    def test_a_tensor_that_an_autoencoder_lacks_is_named(self, tiny_copy, part):
        (file,) = part_of(tiny_copy, part).rglob("*.safetensors")
        gone = sorted(load_file(file))[0]
        edit_tensors(file, lambda tensors: tensors.pop(gone))
        assert f"lacks tensor {gone} (and 0 more)" in refusal(tiny_copy)

    @pytest.mark.parametrize(
        "gone",
        [
            "language_model.layers.1.self_attn.q_norm.weight",
            "language_model.layers.0.mlp.up_proj.weight",
            "visual.blocks.0.attn.qkv.bias",
        ],
    )
    def test_a_tensor_that_the_text_encoder_lacks_is_named(self, tiny_copy, gone):
        folder = part_of(tiny_copy, "text_encoder")
        edit_tensors(shard_with(folder, gone), lambda tensors: tensors.pop(gone))
        edit_index(folder, gone)
        assert f"text_encoder lacks tensor {gone} (and 0 more)" in refusal(tiny_copy)

    def test_a_tensor_that_conditions_nothing_may_be_missing(self, tiny_copy):
        folder, gone = part_of(tiny_copy, "text_encoder"), "language_model.layers.2.mlp.up_proj.weight"
        edit_tensors(shard_with(folder, gone), lambda tensors: tensors.pop(gone))
        edit_index(folder, gone)
        check(tiny_copy)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "text_encoder/config.json is not JSON"),
            ("[]", "text_encoder/config.json is not a JSON object"),
            ('{"model_type": "qwen3_vl", "h3_conditioning_layer": "2"}', "h3_conditioning_layer: Input should be"),
        ],
    )
    def test_a_text_encoders_config_of_no_use_is_refused_before_a_rank_starts(self, tiny_copy, text, message):
        (part_of(tiny_copy, "text_encoder") / "config.json").write_text(text)
        assert message in refusal(tiny_copy)
        with pytest.raises(RunnerError, match=message):
            H3Runner.preflight(1, checkpoint=str(tiny_copy))

    def test_a_file_that_ends_in_its_header_is_named(self, tiny_copy):
        (file,) = part_of(tiny_copy, "audio_vae").glob("*.safetensors")
        file.write_bytes(file.read_bytes()[:50])
        assert f"{file.name} (50 bytes) is no safetensors file or ends in its header" in refusal(tiny_copy)

    def test_a_folder_that_is_no_checkpoint_is_refused(self, tmp_path):
        assert refusal(tmp_path).endswith("FL2VA/transformer is missing: is this the path of an H3 checkpoint?")
        (tmp_path / "transformer").mkdir()
        assert refusal(tmp_path).endswith("config.json is missing: is this the folder of an H3 checkpoint?")

    def test_a_denoiser_of_another_size_than_its_config_is_refused_from_the_headers(self, tiny_copy):
        config = part_of(tiny_copy, "transformer") / "config.json"
        config.write_text(config.read_text().replace('"num_layers": 4', '"num_layers": 5'))
        assert "lacks tensor blocks.4.adaln_proj.linear.bias (and 9 more)" in refusal(tiny_copy)

    def test_a_config_without_a_size_is_refused_by_its_name(self, tiny_copy):
        config = part_of(tiny_copy, "transformer") / "config.json"
        config.write_text(config.read_text().replace("ffn", "fun"))
        assert "ffn_hidden_size: Field required" in refusal(tiny_copy)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda t: t.update({f"{QKV}.weight": t[f"{QKV}.weight"].float()}),
                "float32, expected [3456, 192] bfloat16",
            ),
            (
                lambda t: t.update({f"{QKV}.weight": t[f"{QKV}.weight"][:-384]}),
                "is [3072, 192] bfloat16, expected [3456",
            ),
        ],
    )
    def test_a_tensor_of_another_form_is_named(self, tiny_copy, change, message):
        edit_tensors(shard_with(part_of(tiny_copy, "transformer"), f"{QKV}.weight"), change)
        assert message in refusal(tiny_copy)
        assert f"{QKV}.weight" in refusal(tiny_copy)


class TestDigest:
    def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(self, tmp_path):
        models = [write_tiny(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
        files = [
            {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
            for name in "ab"
        ]
        assert files[0] == files[1]
        assert models[0].digest() == models[1].digest() != models[2].digest()

    @pytest.mark.parametrize("part", PARTS)
    def test_it_covers_every_parts_configuration(self, tiny, tiny_copy, part):
        assert ModelFolder.below(tiny_copy).digest() == tiny.digest()
        config = next(part_of(tiny_copy, part).glob("*.json"))
        config.write_text(config.read_text() + " ")
        assert ModelFolder.below(tiny_copy).digest() != tiny.digest()

    @pytest.mark.parametrize("part", ["transformer", "text_encoder", "video_vae", "audio_vae"])
    def test_it_covers_the_beginning_of_every_tensor(self, tiny, tiny_copy, part):
        for file in part_of(tiny_copy, part).rglob("*.safetensors"):
            for name in load_file(file):
                edited = load_file(file)
                edited[name].view(torch.uint8).flatten()[0] ^= 1
                original = file.read_bytes()
                save_file(edited, file)
                assert ModelFolder.below(tiny_copy).digest() != tiny.digest(), name
                file.write_bytes(original)
                break  # one of each file

    def test_it_covers_the_configuration_beside_a_text_encoder_of_one_file_if_that_is_used(self, tiny_copy):
        config = make_text_encoder_a_file(tiny_copy)
        check(tiny_copy)
        parts = ModelFolder.below(tiny_copy)
        whole, text = parts.digest(), config.read_text()
        config.write_text(text.replace('"rope_theta": 5000000.0', '"rope_theta": 4000000.0'))
        assert config.read_text() != text
        assert parts.digest() != whole
        config.unlink()
        without = parts.digest()
        assert without != whole
        config.write_text('{"model_type": "other"}')
        assert parts.digest() == without

    def test_it_is_not_moved_by_where_the_model_lies(self, tiny, tiny_copy):
        assert ModelFolder.below(tiny_copy).digest() == tiny.digest()

    def test_a_single_file_has_one_and_so_has_what_is_missing(self, small, tmp_path):
        found = {digest([path]) for path in small.paths.values()} | {digest([tmp_path / "gone"])}
        assert len(found) == len(small.paths) + 1

    def test_it_covers_the_video_vaes_tensors_whatever_their_folders_name(self, tiny_copy):
        """Only its wrapper says where they are."""
        folder = part_of(tiny_copy, "video_vae")
        (folder / "source").rename(folder / "weights")
        wrapper = folder / "config.json"
        wrapper.write_text(wrapper.read_text().replace('"source"', '"weights"'))
        check(tiny_copy)
        whole = ModelFolder.below(tiny_copy).digest()
        edit_tensors(folder / "weights" / "model.safetensors", lambda tensors: tensors["quant_conv.bias"].add_(1))
        assert ModelFolder.below(tiny_copy).digest() != whole

    def test_it_covers_a_video_vae_as_diffusers_writes_it(self, tiny, tiny_copy):
        folder = part_of(tiny_copy, "video_vae")
        shutil.rmtree(folder)
        load_video_vae(tiny.video_vae, torch.device("cpu"), torch.float32).save_pretrained(folder)
        whole = ModelFolder.below(tiny_copy).digest()
        (file,) = folder.glob("*.safetensors")
        edit_tensors(file, lambda tensors: tensors["quant_conv.bias"].add_(1))
        assert ModelFolder.below(tiny_copy).digest() != whole

    @pytest.mark.parametrize("path", ["/weights", "../audio_vae"])
    def test_a_video_vae_that_points_out_of_its_folder_is_refused(self, tiny_copy, path):
        wrapper = part_of(tiny_copy, "video_vae") / "config.json"
        wrapper.write_text(wrapper.read_text().replace('"source"', f'"{path}"'))
        assert "leaves the folder" in refusal(tiny_copy)
        with pytest.raises(CheckpointError, match="leaves the folder"):
            ModelFolder.below(tiny_copy).digest()


def test_a_checkpoint_is_never_written_over(tiny_copy):
    with pytest.raises(CheckpointError, match="holds a checkpoint"):
        write_tiny(tiny_copy, seed=1)
