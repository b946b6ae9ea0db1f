import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3FL2VATextEncoderStep
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen3VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from h3 import text_files, text_weights, weights
from h3.errors import CheckpointError, ConfigError
from h3.tensor_file import Header, StoredTensor
from h3.text import MOST_TOKENS, load_text_encoder
from h3.text_files import PUBLISHED_CONFIG, check_text_encoder, find_config, read_sizes, text_shapes
from h3.text_weights import _build, load_model, read_config
from h3.tiny import SPECIAL_TOKENS, write_text_encoder, write_tokenizer
from h3.tokenizer import EXTRA_TOKENS
from tests.h3.text_files import (
    BF16,
    FP32,
    LAYERS,
    Quantised,
    is_needed,
    published_inventory,
    published_markers,
    to_comfy,
)

CPU = torch.device("cpu")
PROMPT = "a red kite, <d>[English] up!</d>"
pytestmark = pytest.mark.usefixtures("one_thread")
PAD = 256 + SPECIAL_TOKENS.index("<|image_pad|>")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The official folders, with the weights and names that transformers writes."""
    root = tmp_path_factory.mktemp("text")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write_text_encoder(root / "weights")
    write_tokenizer(root / "tokenizer")
    return SimpleNamespace(weights=root / "weights", tokenizer=root / "tokenizer")


@pytest.fixture(scope="module")
def encoder(files):
    return load_text_encoder(files.weights, files.tokenizer, CPU)


@pytest.fixture(scope="module")
def plain(files):
    """Every tensor of the official folder by its name there."""
    tensors = {}
    for shard in files.weights.glob("*.safetensors"):
        tensors |= load_file(shard)
    assert any(name.startswith("language_model.layers.2.") for name in tensors)
    return tensors


@pytest.fixture
def copy(files, tmp_path):
    shutil.copytree(files.weights, tmp_path / "weights")
    shutil.copytree(files.tokenizer, tmp_path / "tokenizer")
    return SimpleNamespace(weights=tmp_path / "weights", tokenizer=tmp_path / "tokenizer")


@pytest.fixture
def pictures():
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(0, 256, size, dtype=torch.uint8, generator=generator) for size in ((64, 96, 3), (320, 256, 3))
    ]


def write_folder(folder, tensors, config):
    """One file and a config.json."""
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    shutil.copy(config, folder / "config.json")
    return folder


def write_single_file(path, tensors, files, metadata=None):
    """A file by itself; the sizes of the toy stand beside it, as those of the real encoder need not."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    shutil.copy(files.weights / "config.json", path.parent / "config.json")
    return path


def distance(states, expected):
    return ((states.float() - expected.float()).norm() / expected.float().norm()).item()


def encode(encoder, prompt=PROMPT, pictures=()):
    with torch.inference_mode():
        return encoder.encode(encoder.present(prompt, pictures))


class TestStates:
    @pytest.mark.parametrize("dtype", [BF16, FP32])
    def test_they_are_those_inside_the_stack_and_before_the_final_norm(self, files, dtype):
        encoder = load_text_encoder(files.weights, files.tokenizer, CPU, dtype)
        whole = Qwen3VLModel.from_pretrained(files.weights, dtype=dtype).eval()
        ids = torch.tensor([encoder.present(PROMPT).ids])
        with torch.inference_mode():
            inside = whole(input_ids=ids, output_hidden_states=True).hidden_states
        assert len(inside) == 4
        assert torch.equal(encode(encoder), inside[LAYERS][0])
        assert encode(encoder).dtype == dtype

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_with_pictures_they_are_the_published_pipelines(self, files, encoder, pictures, count):
        expected = PublishedPipeline(files).run(PROMPT, pictures[:count])
        presentation = encoder.present(PROMPT, pictures[:count])
        assert torch.equal(encode(encoder, pictures=pictures[:count]), expected.states)
        tags = [0 if any(row in block for block in presentation.vision) else 1 for row in range(len(presentation.ids))]
        assert tags == expected.tags

    def test_features_from_inside_the_vision_tower_reach_them(self, files, pictures):
        encoder = load_text_encoder(files.weights, files.tokenizer, CPU)
        with_features = encode(encoder, pictures=pictures[:1])
        for parameter in encoder.module.visual.deepstack_merger_list.parameters():
            parameter.zero_()
        assert distance(encode(encoder, pictures=pictures[:1]), with_features) > 0.01

    def test_rotary_frequencies_are_exact_whatever_the_models_dtype(self, encoder):
        model = encoder.module
        assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
        expected = 1 / 5_000_000 ** (torch.arange(0, 32, 2).float() / 32)
        assert torch.equal(model.language_model.rotary_emb.inv_freq, expected)
        assert model.visual.rotary_pos_emb.inv_freq.dtype == FP32


class PublishedPipeline:
    """The step of diffusers' pipeline that encodes a prompt with its keyframes, on the files of an encoder."""

    def __init__(self, files):
        model = Qwen3VLModel.from_pretrained(files.weights, dtype=BF16).eval()
        processor = SimpleNamespace(
            image_processor=Qwen2VLImageProcessorPil(
                patch_size=16,
                merge_size=2,
                temporal_patch_size=2,
                image_mean=[0.5] * 3,
                image_std=[0.5] * 3,
                min_pixels=65536,
                max_pixels=16777216,
            ),
            create_mm_token_type_ids=lambda rows: [[int(token == PAD) for token in row] for row in rows],
        )
        self.components = SimpleNamespace(
            text_encoder=SimpleNamespace(model=model, config=model.config, dtype=BF16),
            tokenizer=AutoTokenizer.from_pretrained(files.tokenizer),
            processor=processor,
            text_encoder_layer=LAYERS,
            text_tag=1,
            video_tag=0,
            _execution_device=CPU,
        )

    def run(self, prompt, pictures):
        state = PipelineState()
        state.set("prompt", prompt)
        state.set("keyframes", [Image.fromarray(picture.numpy()) for picture in pictures])
        _, state = MiniMaxH3FL2VATextEncoderStep()(self.components, state)
        return SimpleNamespace(states=state.get("prompt_embeds")[0], tags=state.get("text_token_tags").tolist())


class TestPresentation:
    def test_the_prompt_is_tokenised_as_it_stands(self, encoder):
        assert len(encoder.present("a red kite").ids) == len("a red kite")
        assert len(encoder.present("☂").ids) == len("☂".encode())

    def test_pictures_stand_before_the_prompt_each_with_its_label(self, encoder, pictures):
        presentation = encoder.present(PROMPT, pictures)
        start, end = encoder.present("<|vision_start|>").ids, encoder.present("<|vision_end|>").ids
        expected = (
            *encoder.present("<Picture 1>: ").ids,
            *(*start, *[PAD] * 70, *end),  # 64 x 96 pixels are too few: they are seen as 224 x 320
            *encoder.present("<Picture 2>: ").ids,
            *(*start, *[PAD] * 80, *end),
            *encoder.present(PROMPT).ids,
        )
        assert presentation.ids == expected
        assert presentation.vision == (range(13, 85), range(98, 180))
        assert [presentation.ids[block.start] for block in presentation.vision] == [*start, *start]
        assert presentation.grid.tolist() == [[1, 14, 20], [1, 20, 16]]

    def test_a_pixel_becomes_a_number_from_minus_one_to_one_in_two_equal_frames(self, encoder):
        picture = torch.zeros(256, 256, 3, dtype=torch.uint8)
        picture[0, 1] = torch.tensor([255, 0, 51])
        patch = encoder.present(PROMPT, [picture]).pixel_values[0].view(3, 2, 16, 16)
        assert torch.allclose(patch[:, :, 0, 1], torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-0.6, -0.6]]))
        assert torch.equal(patch[:, 0], patch[:, 1])
        assert (patch == -1).sum() == patch.numel() - 4

    def test_an_empty_prompt_is_refused(self, encoder, pictures):
        for given in ((), pictures):
            with pytest.raises(ConfigError, match="prompt is empty"):
                encoder.present("", given)

    @pytest.mark.parametrize("count", [0, 1])
    def test_more_than_the_most_tokens_of_prompt_and_pictures_together_are_refused(self, encoder, pictures, count):
        given = pictures[:count]
        room = MOST_TOKENS - len(encoder.present("a", given).ids) + 1
        assert len(encoder.present("a" * room, given).ids) == MOST_TOKENS == 8192
        with pytest.raises(ConfigError, match=rf"are 8193 tokens \({room + 1} of them the prompt\), at most 8192"):
            encoder.present("a" * (room + 1), given)

    def test_what_the_library_has_no_use_for_is_refused_as_ours(self, encoder):
        with pytest.raises(ConfigError, match="the prompt cannot be read by the text encoder"):
            encoder.present("a \ud800")
        for shape in ((8, 8000, 3), (8, 8, 5)):
            with pytest.raises(ConfigError, match="a picture cannot be read by the text encoder"):
                encoder.present(PROMPT, [torch.zeros(shape, dtype=torch.uint8)])

    def test_a_prompt_that_holds_a_pictures_placeholder_is_refused_only_where_there_are_pictures(
        self, encoder, pictures
    ):
        assert PAD in encoder.present("a <|image_pad|>").ids
        with pytest.raises(ConfigError, match=r"holds <\|image_pad\|>"):
            encoder.present("a <|image_pad|>", pictures)


class TestTokenizer:
    def test_h3s_own_tokens_follow_qwens_in_the_published_order(self, encoder):
        assert [encoder.present(token).ids for token in EXTRA_TOKENS] == [(261 + i,) for i in range(7)]
        assert encoder.present("a<d>b</d>").ids == (*encoder.present("a").ids, 261, *encoder.present("b").ids, 262)

    def test_only_the_settings_list_them_as_in_the_official_files(self, files):
        vocabulary = json.loads((files.tokenizer / "tokenizer.json").read_text())
        assert not {entry["content"] for entry in vocabulary["added_tokens"]} & set(EXTRA_TOKENS)

    def test_one_that_splits_a_token_which_its_files_list_is_refused_by_that_token(self, copy):
        edit_json(copy.tokenizer / "tokenizer_config.json", extra_special_tokens=["<extra>"])  # hides the longer list
        with pytest.raises(CheckpointError, match=r"tokenizer lists <d> as one token, and it comes out as 3"):
            load_text_encoder(copy.weights, copy.tokenizer, CPU)

    def test_one_without_h3s_tokens_is_used_with_a_warning(self, copy, caplog):
        edit_json(copy.tokenizer / "tokenizer_config.json", additional_special_tokens=[])
        encoder = load_text_encoder(copy.weights, copy.tokenizer, CPU)
        assert "lists none of <d>, </d>, <|cutoff|>" in caplog.text
        assert len(encoder.present("<d>").ids) == 3

    @pytest.mark.parametrize(
        ("order", "message"),
        [
            ((1, 0, 2, 3, 4, 5, 6), r"has </d> as \[261\], expected \[263\]"),
            ((0, 2, 3, 4, 5, 6), r"has </d> as \[.*, .*\], expected \[262\]"),
        ],
    )
    def test_one_that_has_h3s_tokens_in_another_order_or_not_all_is_refused(self, copy, order, message):
        tokens = [*SPECIAL_TOKENS[:5], *(EXTRA_TOKENS[place] for place in order)]
        edit_json(copy.tokenizer / "tokenizer_config.json", additional_special_tokens=tokens)
        with pytest.raises(CheckpointError, match=message):
            load_text_encoder(copy.weights, copy.tokenizer, CPU)

    def test_one_that_the_library_cannot_read_is_named(self, copy):
        edit_json(copy.tokenizer / "tokenizer.json", model={"type": "unheard of"})
        with pytest.raises(CheckpointError, match=r"tokenizer is not the folder of a tokenizer \("):
            load_text_encoder(copy.weights, copy.tokenizer, CPU)

    def test_one_with_other_ids_than_the_models_is_refused(self, copy):
        edit_json(copy.weights / "config.json", image_token_id=151655)
        with pytest.raises(
            CheckpointError, match=r"<\|image_pad\|> as \[259\], and the text encoder has it as \[151655"
        ):
            load_text_encoder(copy.weights, copy.tokenizer, CPU)

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
    def test_a_file_that_is_missing_or_cut_short_is_named(self, copy, name):
        path = copy.tokenizer / name
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(CheckpointError, match=f"{name} is not JSON"):
            load_text_encoder(copy.weights, copy.tokenizer, CPU)
        path.unlink()
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            load_text_encoder(copy.weights, copy.tokenizer, CPU)


def edit_json(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


class TestPlainFiles:
    def test_both_families_of_names_and_every_layout_give_the_same_states(
        self, files, encoder, plain, tmp_path, pictures
    ):
        config = files.weights / "config.json"
        expected = encode(encoder, pictures=pictures[:1])
        prefixed = {f"model.{name}": tensor for name, tensor in plain.items()}
        comfy = {to_comfy(name): tensor for name, tensor in plain.items() if is_needed(name)}
        for where in (
            write_folder(tmp_path / "short", plain, config),
            write_folder(tmp_path / "long", prefixed | {"lm_head.weight": torch.ones(2, 2)}, config),
            write_folder(tmp_path / "needed", {name: plain[name] for name in plain if is_needed(name)}, config),
            write_single_file(tmp_path / "comfy.safetensors", comfy, files),
        ):
            found = load_text_encoder(where, files.tokenizer, CPU)
            assert torch.equal(encode(found, pictures=pictures[:1]), expected)

    def test_what_does_not_condition_is_never_read(self, files, plain, tmp_path, monkeypatch):
        tensors = {name: plain[name] if is_needed(name) else torch.zeros(3, dtype=torch.int64) for name in plain}
        folder = write_folder(tmp_path / "folder", tensors, files.weights / "config.json")
        read = []

        class Recording(weights.TensorReader):
            def read(self, stored):
                read.append(stored.form)
                return super().read(stored)

        monkeypatch.setattr(weights, "TensorReader", Recording)
        load_text_encoder(folder, files.tokenizer, CPU)
        assert len(read) == sum(is_needed(name) for name in plain) < len(plain)
        assert {form.dtype for form in read} == {BF16}

    def test_a_tensor_that_is_missing_unknown_or_of_another_form_is_named(self, files, plain, tmp_path):
        name = "language_model.layers.1.mlp.up_proj.weight"
        for folder, change, message in (
            ("a", {name: None}, rf"lacks tensor {name}"),
            ("b", {name: plain[name][:-1]}, rf"{name} is \[127, 64\] bfloat16, expected \[128, 64\]"),
            ("c", {name: plain[name].to(torch.int8)}, rf"{name} is \[128, 64\] int8, expected \[128, 64\] bfloat16 or"),
            ("d", {"language_model.layers.1.gate": torch.ones(1)}, r"holds tensor language_model.layers.1.gate"),
            ("e", {"visual.patch_embed.proj.weight": None}, r"holds 0 tensors ...patch_embed.proj.weight"),
        ):
            tensors = {key: tensor for key, tensor in (plain | change).items() if tensor is not None}
            where = write_folder(tmp_path / folder, tensors, files.weights / "config.json")
            with pytest.raises(CheckpointError, match=message):
                load_text_encoder(where, files.tokenizer, CPU)
            with pytest.raises(CheckpointError, match=message):
                check_text_encoder(where)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"model_type": "qwen2"}, "config.json is of a 'qwen2' model, expected qwen3_vl"),
            ({"text_config": {"hidden_size": "wide"}}, "config.json is not the configuration of a Qwen3-VL"),
            ({"text_config": {"attention_bias": True}}, "configuration of a Qwen3-VL .*text_config.attention_bias"),
            ({"text_config": {"num_hidden_layers": 10**9}}, "text_config.num_hidden_layers: .*less than or equal"),
            ({"text_config": 3}, "config.json is not the configuration of a Qwen3-VL"),
            ({"h3_conditioning_layer": 4}, "has 3 layers, but the states after layer 4 condition"),
            ({"h3_conditioning_layer": "2"}, "not the configuration of a Qwen3-VL .*h3_conditioning_layer"),
        ],
    )
    def test_a_config_that_is_of_no_use_is_named(self, copy, fields, message):
        edit_json(copy.weights / "config.json", **fields)
        with pytest.raises(CheckpointError, match=message):
            load_text_encoder(copy.weights, copy.tokenizer, CPU)
        with pytest.raises(CheckpointError, match=message):
            check_text_encoder(copy.weights)


class TestSizes:
    @pytest.mark.parametrize("is_published", [False, True])
    def test_names_and_shapes_are_those_of_transformers_class(self, files, tmp_path, is_published):
        where = tmp_path / "alone.safetensors" if is_published else files.weights
        model = _build(read_config(where), BF16)
        assert text_shapes(read_sizes(where)) == {name: tuple(t.shape) for name, t in model.state_dict().items()}

    def test_defaults_are_transformers(self, tmp_path):
        """Whatever a config.json leaves out; only the two that must agree are stated."""
        fields = {"model_type": "qwen3_vl", "vision_config": {"out_hidden_size": 4096}, "h3_conditioning_layer": 1}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        model = _build(read_config(tmp_path), BF16)
        assert text_shapes(read_sizes(tmp_path)) == {name: tuple(t.shape) for name, t in model.state_dict().items()}

    def test_beside_a_lone_file_only_a_qwen3_vls_config_counts(self, files, tmp_path):
        path = tmp_path / "encoder.safetensors"
        path.touch()
        config = tmp_path / "config.json"
        for fields in ({}, {"model_type": "other"}, {"num_layers": 4}):
            config.write_text(json.dumps(fields))
            assert find_config(path) is None
            assert read_sizes(path).text_config.hidden_size == PUBLISHED_CONFIG["text_config"]["hidden_size"]
            assert read_config(path).text_config.hidden_size == 5120
        shutil.copy(files.weights / "config.json", config)
        assert find_config(path) == config
        assert (read_sizes(path).text_config.hidden_size, read_sizes(path).layers) == (64, LAYERS)

    def test_transformers_is_not_imported(self):
        code = "import sys, h3.text_files; assert not {'transformers', 'diffusers'} & sys.modules.keys()"
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def quantised(plain):
    return Quantised(plain)


GATES = {BF16: 1e-2, FP32: 1e-5}  # rounding of the states themselves; order of summation


class TestQuantisedFile:
    @pytest.fixture
    def load(self, files, tmp_path):
        def load(tensors, dtype=BF16, metadata=None):
            path = write_single_file(tmp_path / "encoder.safetensors", tensors, files, metadata)
            return load_text_encoder(path, files.tokenizer, CPU, dtype)

        return load

    @pytest.mark.parametrize("dtype", [BF16, FP32])
    def test_it_gives_the_states_of_the_plain_weights_that_it_stands_for(
        self, files, quantised, load, tmp_path, pictures, dtype
    ):
        folder = write_folder(tmp_path / "plain", quantised.equal, files.weights / "config.json")
        expected = encode(load_text_encoder(folder, files.tokenizer, CPU, dtype), pictures=pictures[:1])
        encoder = load(quantised.file, dtype)
        assert distance(encode(encoder, pictures=pictures[:1]), expected) < GATES[dtype]

        for layer in encoder.module.language_model.layers:
            layer.self_attn.o_proj.pre_quant_scale.fill_(1)
            layer.mlp.down_proj.pre_quant_scale.fill_(1)
        assert distance(encode(encoder, pictures=pictures[:1]), expected) > 10 * GATES[dtype]

    def test_quantised_layers_stay_packed_in_memory(self, quantised, load):
        model = load(quantised.file).module.language_model
        assert model.embed_tokens.weight.dtype == torch.int8
        assert model.layers[1].mlp.down_proj.weight.dtype == torch.uint8
        assert model.layers[1].mlp.down_proj.full_precision

    def test_what_writers_do_otherwise_changes_nothing(self, quantised, load):
        """Scales as bytes, a scalar with an axis, a pre-scale in fp32, scales of activations, markers elsewhere."""
        expected = encode(load(quantised.file))
        layer = "model.layers.0.mlp.down_proj"
        other = {name: tensor for name, tensor in quantised.file.items() if name != f"{layer}.comfy_quant"}
        other[f"{layer}.weight_scale"] = other[f"{layer}.weight_scale"].view(torch.uint8)
        other[f"{layer}.weight_scale_2"] = other[f"{layer}.weight_scale_2"].view(1)
        other[f"{layer}.pre_quant_scale"] = other[f"{layer}.pre_quant_scale"].float()
        other[f"{layer}.input_scale"] = torch.tensor(0.5)
        other["model.embed_tokens.weight_scale"] = other["model.embed_tokens.weight_scale"].view(-1)
        told = {layer: {"format": "nvfp4", "full_precision_matrix_mult": True}, "model.layers.9.x": {"format": "other"}}
        metadata = {"_quantization_metadata": json.dumps({"layers": told})}
        assert torch.equal(encode(load(other, metadata=metadata)), expected)

    def test_an_embedding_with_one_scale_for_all_rows_is_taken(self, quantised, load):
        whole = quantised.file | {"model.embed_tokens.weight_scale": torch.tensor(0.01)}
        rows = quantised.file | {"model.embed_tokens.weight_scale": torch.full((268, 1), 0.01)}
        assert torch.equal(encode(load(whole)), encode(load(rows)))

    @pytest.mark.parametrize(
        ("layer", "marker", "message"),
        [
            ("model.layers.0.mlp.up_proj", b'{"format": "float8_e4m3fn"}', "up_proj is stored as float8_e4m3fn"),
            ("model.layers.0.mlp.up_proj", b'{"format": "int8_tensorwise"}', "up_proj is stored as int8_tensorwise"),
            ("model.embed_tokens", b'{"format": "nvfp4"}', "embed_tokens is stored as nvfp4"),
            (
                "model.embed_tokens",
                b'{"format": "int8_tensorwise", "convrot": true}',
                "int8_tensorwise {'convrot': True}",
            ),
            ("visual.blocks.0.attn.qkv", b'{"format": "nvfp4"}', "visual.blocks.0.attn.qkv is stored as nvfp4"),
            ("visual.pos_embed.other", b'{"format": "nvfp4"}', "holds tensor visual.pos_embed.other.comfy_quant"),
            ("model.layers.0.mlp.up_proj", b'{"format": "nvfp4"', "marker of model.layers.0.mlp.up_proj is not JSON"),
            ("model.layers.0.mlp.up_proj", b"\xff\xfe{", "marker of model.layers.0.mlp.up_proj is not JSON"),
            ("model.layers.0.mlp.up_proj", b"[" * 10_000, "marker of model.layers.0.mlp.up_proj is not JSON"),
            (
                "model.layers.0.mlp.up_proj",
                b"[]",
                r"marker of model.layers.0.mlp.up_proj is \[\], which names no format",
            ),
            ("model.layers.0.mlp.up_proj", b'{"format": 4}', "up_proj is {'format': 4}, which names no format"),
            ("model.layers.0.mlp.up_proj", b" " * 70_000, r"is \[70000\] uint8, expected the bytes of a marker"),
        ],
    )
    def test_a_marker_that_is_of_no_use_is_refused_with_file_and_layer(self, quantised, load, layer, marker, message):
        tensors = quantised.file | {f"{layer}.comfy_quant": torch.tensor(list(marker), dtype=torch.uint8)}
        with pytest.raises(CheckpointError, match=f"encoder.safetensors.*{message}"):
            load(tensors)

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ("{", "marker of _quantization_metadata is not JSON"),
            ("[]", "_quantization_metadata in the metadata is no"),
            (
                '{"layers": {"model.layers.0.mlp.up_proj": {"format": "nvfp4"}}}',
                "up_proj is marked .* in the metadata and",
            ),
            (
                '{"layers": {"model.layers.0.mlp.up_proj": "nvfp4"}}',
                "marker of model.layers.0.mlp.up_proj is nvfp4, which",
            ),
        ],
    )
    def test_metadata_that_are_broken_or_say_otherwise_than_a_tensor_are_refused(
        self, quantised, load, metadata, message
    ):
        with pytest.raises(CheckpointError, match=f"encoder.safetensors.*{message}"):
            load(quantised.file, metadata={"_quantization_metadata": metadata})

    def test_a_quantised_layer_without_its_marker_is_refused(self, quantised, load):
        tensors = {name: t for name, t in quantised.file.items() if name != "model.layers.0.mlp.up_proj.comfy_quant"}
        with pytest.raises(CheckpointError, match=r"up_proj.weight_scale \(and 1 more\) that H3 has no place for"):
            load(tensors)

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("model.layers.0.mlp.up_proj.weight", lambda t: t[:, 1:], r"is \[128, 31\] uint8, expected \[128, 32\]"),
            ("model.layers.0.mlp.up_proj.weight_scale", lambda t: t[1:], r"is \[127, 4\] .*, expected \[128, 4\]"),
            ("model.layers.0.mlp.up_proj.weight_scale", lambda t: None, "lacks tensor"),
            ("model.layers.0.mlp.up_proj.weight_scale_2", lambda t: t.bfloat16(), r"is \[\] bfloat16, expected \[\] f"),
            ("model.layers.0.mlp.up_proj.weight_scale_2", lambda t: None, "lacks tensor"),
            ("model.layers.0.mlp.down_proj.pre_quant_scale", lambda t: t[1:], r"is \[127\] .*, expected \[128\]"),
            ("model.embed_tokens.weight", lambda t: t.bfloat16(), r"is \[268, 64\] bfloat16, expected .* int8"),
            ("model.embed_tokens.weight_scale", lambda t: None, "lacks tensor"),
            ("visual.blocks.0.attn.qkv.bias", lambda t: None, "lacks tensor"),
        ],
    )
    def test_a_tensor_of_a_quantised_layer_that_is_missing_or_of_another_form_is_named_from_the_headers(
        self, files, quantised, tmp_path, name, change, message
    ):
        tensors = quantised.file | {name: change(quantised.file[name])}
        tensors = {key: tensor for key, tensor in tensors.items() if tensor is not None}
        path = write_single_file(tmp_path / "encoder.safetensors", tensors, files)
        with pytest.raises(CheckpointError, match=rf"encoder.safetensors.*{message}") as refused:
            check_text_encoder(path)
        assert name in str(refused.value)

    def test_a_layer_that_is_no_whole_blocks_is_named(self, files, quantised, tmp_path):
        path = write_single_file(tmp_path / "encoder.safetensors", quantised.file, files)
        fields = json.loads((tmp_path / "config.json").read_text())
        fields["text_config"]["intermediate_size"] = 120
        edit_json(tmp_path / "config.json", **fields)
        with pytest.raises(CheckpointError, match=r"encoder.safetensors: layer .*0.mlp.down_proj .* its 120"):
            check_text_encoder(path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
class TestOnAGPU:
    # In fp32 the vision tower's convolution is TF32 on a GPU, ten bits.
    @pytest.mark.parametrize(("dtype", "gate"), [(BF16, 1e-2), (FP32, 1e-3)])
    def test_both_layouts_load_there_and_give_the_states_of_the_cpu(
        self, files, quantised, tmp_path, pictures, dtype, gate
    ):
        for where in (files.weights, write_single_file(tmp_path / "encoder.safetensors", quantised.file, files)):
            on_cpu = load_text_encoder(where, files.tokenizer, CPU, dtype)
            on_gpu = load_text_encoder(where, files.tokenizer, torch.device("cuda", 0), dtype)
            for given in ((), pictures):
                states = encode(on_gpu, pictures=given)
                assert states.is_cuda
                assert distance(states.cpu(), encode(on_cpu, pictures=given)) < gate
            model = on_gpu.module
            assert all(tensor.is_cuda for tensor in [*model.parameters(), *model.buffers()])


class TestPublishedEncoder:
    """The file of 15.7 GB, by its inventory: every tensor of it finds its place in a model of the published sizes."""

    def test_a_lone_file_has_the_published_sizes(self, tmp_path, monkeypatch):
        path = tmp_path / "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors"
        path.touch()
        tensors = {name: StoredTensor(path, form, 0, form.size_bytes) for name, form in published_inventory().items()}
        markers = 351 * [55]
        markers[0] = 29
        size = sum(tensor.form.size_bytes for tensor in tensors.values()) + sum(markers)
        assert len(tensors) + len(markers) == 2054
        assert 0 < 15_687_142_551 - size < 400_000  # the rest is the header
        monkeypatch.setattr(
            text_files, "read_header", lambda _: Header(tensors, {"_quantization_metadata": published_markers()})
        )
        monkeypatch.setattr(text_weights, "fill", lambda *_: None)

        config = read_config(path)
        model = load_model(path, config, torch.device("meta"), BF16)
        assert len(model.language_model.layers) == 50
        assert config.text_config.rope_parameters["mrope_section"] == [24, 20, 20]
        assert [config.image_token_id, config.vision_start_token_id, config.vision_end_token_id] == [
            151655,
            151652,
            151653,
        ]
