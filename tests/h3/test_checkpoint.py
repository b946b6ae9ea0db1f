"""Every format of the denoiser's files loads to the same weights, and what is not whole or not H3 is refused."""

import json
import logging

import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from safetensors.torch import load_file, save_file

from h3.checkpoint import DenoiserFiles, load_denoiser
from h3.convert import Target
from h3.errors import CheckpointError, ConfigError
from h3.families import Family, QkvOrder
from h3.nvfp4 import NVFP4Linear, dequantise, quantise
from h3.precision import Precision
from h3.untrained import TINY
from tests.h3.checkpoint_files import (
    LINEARS,
    PREFIX,
    QKV,
    SMALL,
    comfy_tensors,
    encode,
    mixed_formats,
    official_tensors,
    pack_fp8,
    pack_nvfp4,
    quantise_layers,
    write_comfy,
    write_official,
)
from tests.h3.oracle import diffusers_model
from tests.h3.random_models import MEDIUM, MEDIUM_PRUNED
from tests.h3.test_exact import ONE_STEP, errors, make_request

CPU = torch.device("cpu")
PLAIN = [Target.OFFICIAL, Target.DIFFUSERS, Target.COMFY_PRUNED]
NVFP4 = {"format": "nvfp4"}


def assert_same_weights(found, expected):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def is_packed(name):
    return name.startswith("blocks.") and name.removesuffix(".weight").endswith(LINEARS)


@pytest.fixture(scope="module")
def twin(medium):
    return diffusers_model(medium.model)


@pytest.fixture(scope="module")
def pruned_twin(medium):
    return diffusers_model(medium.pruned)


class TestEveryFormat:
    @pytest.mark.parametrize("target", PLAIN)
    def test_loads_to_equal_bits(self, medium, target):
        loaded = load_denoiser(medium.paths[target], CPU)
        assert_same_weights(loaded, medium.model_in(target))
        assert not loaded.training
        assert not any(parameter.requires_grad for parameter in loaded.parameters())

    @pytest.mark.parametrize("target", PLAIN)
    def test_is_widened_where_fp32_is_asked_for(self, small, target):
        loaded = load_denoiser(small.paths[target], CPU, Precision.FP32)
        assert loaded.dtype == torch.float32
        for name, tensor in small.model_in(target).state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor.float()), name

    def test_is_told_by_what_it_holds(self, small):
        opened = {target: DenoiserFiles.open(path) for target, path in small.paths.items()}
        assert [files.family for files in opened.values()] == ["official", "diffusers", "comfy", "comfy"]
        assert [files.order for files in opened.values()] == ["interleaved", "separate", "contiguous", "contiguous"]
        assert [files.precision for files in opened.values()] == ["bf16", "bf16", "bf16", "nvfp4"]
        assert {files.config.num_attention_heads for files in opened.values()} == {3}

    def test_is_the_model_that_diffusers_has(self, medium, twin):
        request = make_request(MEDIUM)
        expected = request.expected(twin)
        with torch.inference_mode():
            found = request.velocity(load_denoiser(medium.paths[Target.OFFICIAL], CPU))
        assert max(errors(found, expected)) <= ONE_STEP[torch.bfloat16]

    def test_is_the_pruned_model_that_diffusers_has_with_a_curve(self, medium, pruned_twin):
        request = make_request(MEDIUM_PRUNED)
        expected = request.expected(pruned_twin)
        with torch.inference_mode():
            found = request.velocity(load_denoiser(medium.paths[Target.COMFY_PRUNED], CPU))
        assert max(errors(found, expected)) <= ONE_STEP[torch.bfloat16]

    def test_diffusers_itself_loads_our_folder(self, medium, twin):
        loaded = MiniMaxH3Transformer3DModel.from_pretrained(medium.paths[Target.DIFFUSERS], torch_dtype=torch.bfloat16)
        assert dict(loaded.config).items() >= MEDIUM.model_dump(exclude={"curve_points", "patch_size"}).items()
        found, expected = loaded.state_dict(), twin.state_dict()
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype, name
            assert torch.equal(found[name], tensor), name


class TestFilesOfOthers:
    def test_official_shards_load_whatever_the_order_of_their_tensors(self, medium, tmp_path):
        folder = write_official(tmp_path / "official", official_tensors(medium.model), MEDIUM)
        assert_same_weights(load_denoiser(folder, CPU), medium.model)

    def test_a_folder_that_diffusers_wrote_loads(self, medium, twin, tmp_path):
        twin.save_pretrained(tmp_path / "diffusers", max_shard_size="20MB")
        assert_same_weights(load_denoiser(tmp_path / "diffusers", CPU), medium.model)

    @pytest.mark.parametrize("prefix", ["", PREFIX])
    @pytest.mark.parametrize("curve_dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
    def test_a_pruned_file_loads_with_and_without_prefix_and_with_any_curve_dtype(
        self, small, tmp_path, prefix, curve_dtype
    ):
        file = write_comfy(tmp_path / "x.safetensors", comfy_tensors(small.pruned, curve_dtype), prefix=prefix)
        assert_same_weights(load_denoiser(file, CPU), small.pruned)

    def test_a_file_that_is_not_pruned_loads_too(self, small, tmp_path):
        file = write_comfy(tmp_path / "x.safetensors", comfy_tensors(small.model))
        assert_same_weights(load_denoiser(file, CPU), small.model)

    def test_a_folder_with_one_file_needs_no_index(self, small, tmp_path):
        folder = write_official(tmp_path / "official", official_tensors(small.model), SMALL, shards=1)
        (folder / "model.safetensors.index.json").unlink()
        assert_same_weights(load_denoiser(folder, CPU), small.model)

    def test_the_name_of_a_file_says_nothing(self, small, tmp_path):
        file = write_comfy(tmp_path / "h3_nvfp4_official.safetensors", comfy_tensors(small.pruned))
        files = DenoiserFiles.open(file)
        assert (files.family, files.precision) == (Family.COMFY, Precision.BF16)

    def test_qkv_rows_are_head_by_head_in_the_shards_and_apart_in_the_model(self, tiny):
        folder, name = tiny.transformer, f"{QKV}.weight"
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        stored = load_file(folder / index["weight_map"][name])[name]
        heads, dim = TINY.num_attention_heads, TINY.attention_head_dim
        loaded = load_denoiser(folder, CPU).state_dict()[name]
        q_of_head_1 = stored[3 * dim : 4 * dim]
        k_of_head_0 = stored[dim : 2 * dim]
        assert torch.equal(loaded[dim : 2 * dim], q_of_head_1)
        assert torch.equal(loaded[heads * dim : heads * dim + dim], k_of_head_0)

    def test_islands_are_fp32_and_the_rest_is_bf16(self, tiny):
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
        assert {dtype for dtype in dtypes.values() if dtype != torch.float32} == {torch.bfloat16}


class TestNVFP4:
    @pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP32])
    def test_it_is_widened_to_the_eager_dequantisation(self, medium, precision):
        loaded = load_denoiser(medium.paths[Target.COMFY_NVFP4], CPU, precision).state_dict()
        dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
        for name, tensor in medium.pruned.state_dict().items():
            wanted = torch.float32 if tensor.dtype == torch.float32 else dtype
            expected = dequantise(quantise(tensor), dtype) if is_packed(name) else tensor.to(wanted)
            assert torch.equal(loaded[name], expected), name

    def test_it_stays_packed_unless_asked_otherwise(self, small):
        loaded = load_denoiser(small.paths[Target.COMFY_NVFP4], CPU)
        packed = {name for name, layer in loaded.named_modules() if isinstance(layer, NVFP4Linear)}
        assert packed == {f"blocks.{i}.{linear}" for i in range(SMALL.num_layers) for linear in LINEARS}
        for name in packed:
            found, expected = loaded.get_submodule(name).packed, quantise(small.pruned.get_submodule(name).weight)
            assert torch.equal(found.codes, expected.codes)
            assert torch.equal(found.scales.view(torch.uint8), expected.scales.view(torch.uint8))
            assert found.scale == expected.scale

    def test_bf16_files_do_not_have_it_and_the_remedy_is_named(self, small):
        path = small.paths[Target.OFFICIAL]
        with pytest.raises(ConfigError) as refusal:
            load_denoiser(path, CPU, Precision.NVFP4)
        assert str(refusal.value) == (
            f"{path} holds bf16 weights, not nvfp4: h3render checkpoint convert {path} FILE --to comfy-nvfp4"
        )

    @pytest.mark.parametrize("text", ["fp16", "fp6", "BF16", ""])
    def test_a_precision_that_there_is_not_is_refused_with_those_that_there_are(self, text):
        with pytest.raises(ConfigError, match=rf"^precision '{text}' is not one of {', '.join(Precision)}") as refusal:
            Precision.parse(text)
        assert ("overflows" in str(refusal.value)) == (text == "fp16")


@pytest.fixture(scope="module")
def mixed(medium):
    """Blocks in NVFP4, plain, fp8 and int8 by turns."""
    return quantise_layers(comfy_tensors(medium.pruned), mixed_formats(MEDIUM_PRUNED))


@pytest.fixture(scope="module")
def mixed_file(mixed, tmp_path_factory):
    tensors, markers, _ = mixed
    return write_comfy(tmp_path_factory.mktemp("mixed") / "x.safetensors", tensors, markers, prefix=PREFIX)


class TestMixedFiles:
    @pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP32])
    def test_each_layer_is_widened_from_its_own_format(self, medium, mixed, mixed_file, precision):
        loaded = load_denoiser(mixed_file, CPU, precision)
        for name, tensor in medium.pruned.state_dict().items():
            expected = mixed[2].get(name, tensor)
            assert torch.equal(loaded.state_dict()[name], expected.to(loaded.state_dict()[name].dtype)), name

    def test_only_nvfp4_layers_stay_packed(self, mixed, mixed_file):
        loaded = load_denoiser(mixed_file, CPU)
        packed = {name for name, layer in loaded.named_modules() if isinstance(layer, NVFP4Linear)}
        assert packed == {f"blocks.{i}.{linear}" for i in range(0, MEDIUM.num_layers, 4) for linear in LINEARS}
        for name in packed:
            assert torch.equal(dequantise(loaded.get_submodule(name).packed, torch.float32), mixed[2][f"{name}.weight"])

    def test_packed_and_widened_have_one_velocity(self, medium, mixed_file, pruned_twin):
        request = make_request(MEDIUM_PRUNED)
        with torch.inference_mode():
            widened, packed = (request.velocity(load_denoiser(mixed_file, CPU, p)) for p in (Precision.BF16, None))
            assert max(errors(packed, widened)) <= ONE_STEP[torch.bfloat16]
            # That of the weights that were quantised is near, but by four bits not the same.
            assert 0.01 < max(errors(widened, request.expected(pruned_twin))) < 0.5

    @pytest.mark.parametrize("prefix", ["", PREFIX])
    @pytest.mark.parametrize("in_metadata", [False, True])
    def test_markers_stand_in_tensors_or_in_metadata(self, small, tmp_path, prefix, in_metadata):
        tensors, markers, stands_for = quantise_layers(
            comfy_tensors(small.pruned), {QKV: "nvfp4", "blocks.1.mlp.fc1": "int8_tensorwise"}
        )
        file = write_comfy(tmp_path / "x.safetensors", tensors, markers, prefix, in_metadata)
        loaded = load_denoiser(file, CPU, Precision.FP32).state_dict()
        for name, weight in stands_for.items():
            assert torch.equal(loaded[name], weight)

    def test_what_writers_do_otherwise_changes_nothing(self, small, tmp_path):
        """Scales as bytes, a static scale of the activation, markers said twice, and fields that mean nothing here."""
        tensors, markers, stands_for = quantise_layers(
            comfy_tensors(small.pruned), {QKV: "nvfp4", "blocks.1.mlp.fc2": "float8_e4m3fn"}
        )
        tensors[f"{QKV}.weight_scale"] = tensors[f"{QKV}.weight_scale"].view(torch.uint8)
        for layer in markers:
            tensors[f"{layer}.input_scale"] = torch.tensor(0.5)
        markers["blocks.1.mlp.fc2"] |= {"full_precision_matrix_mult": True, "orig_dtype": "bf16"}
        tensors |= {f"{layer}.comfy_quant": encode(marker) for layer, marker in markers.items()}
        file = write_comfy(tmp_path / "x.safetensors", tensors, markers, in_metadata=True)
        loaded = load_denoiser(file, CPU, Precision.FP32).state_dict()
        for name, weight in stands_for.items():
            assert torch.equal(loaded[name], weight)

    def test_full_precision_is_kept_for_the_layer_that_wants_it(self, small, tmp_path):
        layers = {QKV: "nvfp4", "blocks.0.mlp.fc2": "nvfp4"}
        tensors, markers, _ = quantise_layers(comfy_tensors(small.pruned), layers)
        markers["blocks.0.mlp.fc2"]["full_precision_matrix_mult"] = True
        loaded = load_denoiser(write_comfy(tmp_path / "x.safetensors", tensors, markers), CPU)
        assert [loaded.get_submodule(layer).full_precision for layer in layers] == [False, True]

    @pytest.mark.parametrize("kind", ["nvfp4", "float8_e4m3fn", "int8_tensorwise"])
    @pytest.mark.parametrize("layer", ["token_refiner.blocks.0.attn.qkv_proj", "blocks.1.adaln_proj.linear"])
    def test_other_layers_may_be_quantised_with_and_without_bias(self, small, tmp_path, layer, kind):
        tensors, markers, stands_for = quantise_layers(comfy_tensors(small.model), {layer: kind})
        file = write_comfy(tmp_path / "x.safetensors", tensors, markers)
        loaded = load_denoiser(file, CPU, Precision.BF16).state_dict()
        assert torch.equal(loaded[f"{layer}.weight"], stands_for[f"{layer}.weight"].bfloat16())
        load_denoiser(file, CPU)


def refusal_of(path, error=CheckpointError):
    with pytest.raises(error) as refusal:
        load_denoiser(path, CPU)
    return str(refusal.value)


def recast(name, dtype):
    return lambda tensors: tensors.update({name: tensors[name].to(dtype)})


WRONG_TENSORS = {
    "missing": (
        lambda tensors: tensors.pop("blocks.1.mlp.fc2.weight"),
        "lacks tensor blocks.1.mlp.fc2.weight (and 0 more)",
    ),
    "block gone": (
        lambda tensors: [tensors.pop(name) for name in [*tensors] if name.startswith("blocks.0.")],
        "lacks tensor blocks.0.attn.q_norm.weight: is this a denoiser of H3?",
    ),
    "unknown": (
        lambda tensors: tensors.update({"blocks.0.attn.to_gate_compress": torch.zeros(3)}),
        "holds tensor blocks.0.attn.to_gate_compress (and 0 more) that H3 has no place for",
    ),
    "shape": (
        lambda tensors: tensors.update({"blocks.1.attn.qkv_proj.weight": torch.zeros(96, 32).bfloat16()}),
        "blocks.1.attn.qkv_proj.weight is [96, 32] bfloat16, expected [144, 32] bfloat16",
    ),
    "transposed": (
        lambda tensors: tensors.update({"blocks.0.mlp.fc2.weight": tensors["blocks.0.mlp.fc2.weight"].T.contiguous()}),
        "blocks.0.mlp.fc2.weight is [48, 32] bfloat16, expected [32, 48] bfloat16",
    ),
    "bf16 island": (
        recast("final_layer.video_out.bias", torch.bfloat16),
        "final_layer.video_out.bias is [8] bfloat16, expected [8] float32",
    ),
    "bf16 curve": (
        recast("adaln_t_table", torch.bfloat16),
        "adaln_t_table is [9, 4] bfloat16, expected [9, 4] float32",
    ),
    "fp16 block": (
        recast("blocks.1.mlp.fc1.weight", torch.float16),
        "blocks.1.mlp.fc1.weight is [96, 32] float16, expected [96, 32] bfloat16",
    ),
    "fp32 norm": (
        recast("token_refiner.final_norm.weight", torch.float32),
        "token_refiner.final_norm.weight is [32] float32, expected [32] bfloat16",
    ),
    "integers": (
        recast("condition_proj.weight", torch.int16),
        "condition_proj.weight is [32, 8] int16, expected [32, 8] bfloat16",
    ),
    "frequencies": (
        lambda tensors: tensors["rope.inv_freq"].mul_(1.001),
        "rope.inv_freq is [1.00",
    ),
    "fewer frequencies": (
        lambda tensors: tensors.update({"rope.inv_freq": torch.tensor([0.5])}),
        "rope.inv_freq is [0.5], expected [1.0]",
    ),
    "time embedding beside the curve": (
        lambda tensors: tensors.update({"time_embedder.proj_in.bias": torch.zeros(3)}),
        "holds tensor time_embedder.proj_in.bias (and 0 more) that H3 has no place for",
    ),
    "no curve": (
        lambda tensors: tensors.pop("adaln_t_table"),
        "lacks tensor time_embedder.proj_in.weight: is this a denoiser of H3?",
    ),
    "a curve of one point": (
        lambda tensors: tensors.update({"adaln_t_table": torch.zeros(1, 4)}),
        "curve_points 1 are no curve, expected 2 or more",
    ),
    "scale without a marker": (
        lambda tensors: tensors.update({f"{QKV}.weight_scale": torch.tensor(1.0)}),
        f"holds tensor {QKV}.weight_scale (and 0 more) that H3 has no place for",
    ),
    "activation scale without a marker": (
        lambda tensors: tensors.update({f"{QKV}.input_scale": torch.tensor(1.0)}),
        f"holds tensor {QKV}.input_scale (and 0 more) that H3 has no place for",
    ),
    "a name with and without prefix": (
        lambda tensors: tensors.update({f"{PREFIX}{QKV}.weight": tensors[f"{QKV}.weight"].clone()}),
        f"holds {PREFIX}{QKV}.weight, and the same without {PREFIX}",
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("case", WRONG_TENSORS)
    def test_a_tensor_that_is_wrong_is_named_with_its_file(self, small, tmp_path, case):
        change, message = WRONG_TENSORS[case]
        tensors = comfy_tensors(small.pruned)
        change(tensors)
        refusal = refusal_of(write_comfy(tmp_path / "x.safetensors", tensors))
        assert message in refusal
        assert str(tmp_path / "x.safetensors") in refusal

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                recast("time_embedder.proj_in.weight", torch.bfloat16),
                r"proj_in.weight is .* bfloat16, expected .* float32",
            ),
            (recast(f"{QKV}.weight", torch.float32), rf"{QKV}.weight is .* float32, expected .* bfloat16"),
            (lambda tensors: tensors.pop("rope.inv_freq"), r"official lacks tensor rope.inv_freq \(and 0 more\)"),
            (lambda tensors: tensors["rope.inv_freq"].add_(1), r"official: rope.inv_freq is \[2.0, .*expected \[1.0, "),
            (lambda tensors: tensors.update({"bias": torch.zeros(3)}), r"holds tensor bias .* no place for"),
        ],
    )
    def test_so_it_is_in_official_shards(self, small, tmp_path, change, message):
        tensors = official_tensors(small.model)
        change(tensors)
        with pytest.raises(CheckpointError, match=message):
            load_denoiser(write_official(tmp_path / "official", tensors, SMALL), CPU)

    def test_headers_suffice_to_refuse(self, small, tmp_path, monkeypatch):
        """Nothing of a weight is read before everything is known to be there."""
        tensors = official_tensors(small.model)
        tensors.pop("final_layer.norm.weight")
        folder = write_official(tmp_path / "official", tensors, SMALL)
        monkeypatch.setattr("h3.tensor_file.TensorReader.read", None)
        with pytest.raises(CheckpointError, match=r"lacks tensor final_layer.norm.weight"):
            load_denoiser(folder, CPU)

    @pytest.mark.parametrize("missing", [{"ffn_hidden_size": None}, {"num_layers": "two"}, {"hidden_size": 0}])
    def test_a_field_of_config_json_is_named(self, small, tmp_path, missing):
        folder = write_official(tmp_path / "official", official_tensors(small.model), SMALL)
        fields = json.loads((folder / "config.json").read_text()) | missing
        (folder / "config.json").write_text(json.dumps(fields))
        assert f"config.json is not the config.json of an H3 denoiser: {next(iter(missing))}: " in refusal_of(folder)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"rope_theta": 0}, "rope_theta: Input should be greater than 0"),
            ({"norm_eps": -1e-5}, "norm_eps: Input should be greater than 0"),
            ({"final_norm_eps": float("nan")}, "final_norm_eps: Input should be a finite number"),
            ({"qk_norm_eps": float("inf")}, "qk_norm_eps: Input should be a finite number"),
            ({"num_layers": 100_000}, "num_layers: Input should be less than or equal to 512"),
            ({"timestep_input_dim": -8}, "timestep_input_dim: Input should be greater than or equal to 0"),
            ({"timestep_input_dim": 7}, "freq_dim 7 and time_embed_hidden_dim 12 are no time embedding"),
            (
                {"time_embed_hidden_size": 2**62},
                "time_embed_hidden_size: Input should be less than or equal to 1048576",
            ),
            ({"rope_inv_freq_len": 3}, "rope_freq_dim 3 rotates 18 channels of a head, but attention_head_dim is 16"),
        ],
    )
    def test_a_size_without_sense_is_refused(self, small, tmp_path, fields, message):
        folder = write_official(tmp_path / "official", official_tensors(small.model), SMALL)
        stated = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(stated))
        assert message in refusal_of(folder, (CheckpointError, ConfigError))

    def test_a_file_cut_short_is_named_with_the_tensor_that_ends_behind_it(self, small, tmp_path):
        file = tmp_path / "x.safetensors"
        content = small.paths[Target.COMFY_NVFP4].read_bytes()
        file.write_bytes(content[:-10])
        assert refusal_of(file) == (
            f"{file} is cut short in tensor final_layer.audio_out.bias, which ends at byte {len(content)} of "
            f"{len(content) - 10}: fetch it again"
        )

    @pytest.mark.parametrize("junk", [b"\0" * 65, b"x", b"<html>" * 1000, b" " * 70])
    def test_bytes_after_the_last_tensor_are_tolerated_with_a_warning(self, small, tmp_path, caplog, junk):
        file = tmp_path / "x.safetensors"
        file.write_bytes(small.paths[Target.COMFY_PRUNED].read_bytes() + junk)
        with caplog.at_level(logging.WARNING):
            assert_same_weights(load_denoiser(file, CPU), small.pruned)
        assert f"{file} has {len(junk)} bytes after its last tensor; they are ignored" in caplog.text


def with_markers(tensors, layers, **fields):
    """Quantise layers, and say something else of them."""
    tensors, markers, _ = quantise_layers(tensors, layers)
    return tensors, {layer: marker | fields for layer, marker in markers.items()}


class TestMarkersThatAreOfNoUse:
    def refusal(self, tmp_path, tensors, markers, **where):
        file = write_comfy(tmp_path / "x.safetensors", tensors, markers, **where)
        refusal = refusal_of(file)
        assert str(file) in refusal
        return refusal

    @pytest.mark.parametrize(
        "marker",
        [
            {"format": "asym_w4a8_int8"},
            {"format": "convrot_w4a4"},
            {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256},
        ],
    )
    @pytest.mark.parametrize("in_metadata", [False, True])
    def test_a_format_that_is_not_supported_is_named_with_its_layer(self, small, tmp_path, marker, in_metadata):
        tensors, markers = with_markers(comfy_tensors(small.pruned), {QKV: "int8_tensorwise"}, **marker)
        refusal = self.refusal(tmp_path, tensors, markers, in_metadata=in_metadata)
        fields = {name: value for name, value in marker.items() if name != "format"}
        assert f"{QKV} is stored as {marker['format']} {fields}, which is not supported; take a file with" in refusal

    @pytest.mark.parametrize("layer", ["blocks.7.mlp.fc1", "blocks.0", "rope", "rope.inv_freq", "adaln_t_table", "x"])
    def test_a_layer_that_h3_lacks_is_named(self, small, tmp_path, layer):
        refusal = self.refusal(tmp_path, comfy_tensors(small.pruned), {layer: NVFP4}, in_metadata=True)
        assert f"marks layer {layer} as quantised, which H3 does not have" in refusal

    @pytest.mark.parametrize("layer", ["video_patch_proj", "final_layer.adaln_proj.linear", "blocks.0.norm1"])
    @pytest.mark.parametrize("kind", ["nvfp4", "float8_e4m3fn"])
    def test_an_island_or_a_norm_is_never_quantised(self, small, tmp_path, layer, kind):
        refusal = self.refusal(tmp_path, comfy_tensors(small.pruned), {layer: {"format": kind}}, in_metadata=True)
        assert f"{layer} is stored as {kind}, expected a plain weight" in refusal

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            ("nvfp4", f"{QKV}.weight is [144, 32] int8, expected [144, 16] uint8"),
            ("float8_e4m3fn", f"{QKV}.weight is [144, 32] int8, expected [144, 32] float8_e4m3fn"),
        ],
    )
    def test_a_layer_that_is_stored_otherwise_than_its_marker_says_is_named(self, small, tmp_path, kind, message):
        tensors, markers = with_markers(comfy_tensors(small.pruned), {QKV: "int8_tensorwise"}, format=kind)
        if kind == "nvfp4":
            tensors[f"{QKV}.weight_scale_2"] = torch.tensor(1.0)
        assert message in self.refusal(tmp_path, tensors, markers)

    @pytest.mark.parametrize("leaf", ["weight_scale", "weight_scale_2"])
    def test_a_scale_that_is_missing_or_of_another_form_is_named(self, small, tmp_path, leaf):
        tensors, markers = with_markers(comfy_tensors(small.pruned), {QKV: "nvfp4"})
        scale = tensors.pop(f"{QKV}.{leaf}")
        assert f"lacks tensor {QKV}.{leaf} (and 0 more)" in self.refusal(tmp_path, tensors, markers)
        tensors[f"{QKV}.{leaf}"] = scale.to(torch.bfloat16)
        assert f"{QKV}.{leaf} is {[*scale.shape]} bfloat16, expected" in self.refusal(tmp_path, tensors, markers)

    @pytest.mark.parametrize(
        ("marker", "message"),
        [
            (torch.tensor([123, 34], dtype=torch.uint8), f"the marker of {QKV} is not JSON"),
            (torch.tensor([255, 254], dtype=torch.uint8), f"the marker of {QKV} is not JSON"),
            (torch.empty(0, dtype=torch.uint8), f"the marker of {QKV} is not JSON"),
            (encode([NVFP4]), f"the marker of {QKV} is [{{'format': 'nvfp4'}}], which names no format"),
            (encode({"format": 4}), f"the marker of {QKV} is {{'format': 4}}, which names no format"),
            (encode(NVFP4 | {"full_precision_matrix_mult": "yes"}), "which names no format"),
            (encode(NVFP4).int(), f"{QKV}.comfy_quant is [19] int32, expected the bytes of a marker"),
            (torch.zeros(2**17, dtype=torch.uint8), f"{QKV}.comfy_quant is [131072] uint8, expected the bytes"),
        ],
    )
    def test_a_marker_that_is_none_is_refused_with_its_layer(self, small, tmp_path, marker, message):
        tensors, _ = with_markers(comfy_tensors(small.pruned), {QKV: "nvfp4"})
        assert message in self.refusal(tmp_path, tensors | {f"{QKV}.comfy_quant": marker}, {})

    @pytest.mark.parametrize(
        "text", ["", "[]", "{}", '{"layers": []}', '{"layers": {"x": {}}}', '{"layers": {"x": 3}}']
    )
    def test_metadata_that_mark_nothing_are_refused(self, small, tmp_path, text):
        save_file(comfy_tensors(small.pruned), tmp_path / "x.safetensors", {"_quantization_metadata": text})
        assert "marker" in (refusal := refusal_of(tmp_path / "x.safetensors")) or "metadata" in refusal

    def test_a_marker_that_contradicts_the_metadata_is_refused(self, small, tmp_path):
        tensors, markers = with_markers(comfy_tensors(small.pruned), {QKV: "nvfp4"})
        tensors[f"{QKV}.comfy_quant"] = encode({"format": "float8_e4m3fn"})
        refusal = self.refusal(tmp_path, tensors, markers, in_metadata=True)
        assert f"layer {QKV} is marked" in refusal

    def test_a_quantised_layer_without_its_marker_is_refused(self, small, tmp_path):
        for pack in (pack_nvfp4, pack_fp8):
            tensors = comfy_tensors(small.pruned)
            parts, _ = pack(tensors.pop(f"{QKV}.weight"))
            tensors |= {f"{QKV}.{leaf}": part for leaf, part in parts.items()}
            assert f"holds tensor {QKV}.weight_scale" in self.refusal(tmp_path, tensors, {})


def test_an_order_that_is_stated_wins_over_the_family(small, tmp_path):
    file = write_comfy(tmp_path / "x.safetensors", official_tensors(small.model))
    assert_same_weights(DenoiserFiles.open(file, QkvOrder.INTERLEAVED).load(CPU), small.model)
    assert not torch.equal(load_denoiser(file, CPU).get_submodule(QKV).weight, small.model.get_submodule(QKV).weight)
