"""The text encoder's files: its sizes, and where each tensor lies that conditions H3. Imports no transformers.

An official folder has the whole Qwen3-VL: layers behind the one that conditions, the final norm and the head are never
read. A single file, as ComfyUI has them, has other names, and linear layers and embedding quantised where a marker
says so. The norms of an AWQ file are not the official ones (scales are folded into them), so nothing is ever taken
from elsewhere than that file. Shapes are computed, so that a process that only checks a checkpoint builds no model.
Source: the headers of the published files, restated.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator
from torch import Tensor

from h3.errors import CheckpointError
from h3.json_file import read_object
from h3.markers import MARKER_SUFFIX, Marker, read_markers
from h3.nvfp4 import BLOCK, SCALE_DTYPE, packed_forms
from h3.tensor_file import Header, StoredTensor, find_tensors, read_header
from h3.weights import Part, Recipe, check_recipes, only

CONDITIONING_LAYER = 50  # layers that run; a config.json may say otherwise under this key
LAYER_KEY = "h3_conditioning_layer"
MODEL_TYPE = "qwen3_vl"
# Qwen3-VL-32B, for a file without a config.json; what is not named is transformers' default for the family.
PUBLISHED_CONFIG: dict[str, object] = {
    "model_type": MODEL_TYPE,
    "text_config": {
        "vocab_size": 151_936,
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5_000_000.0,
            "mrope_section": [24, 20, 20],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 5120,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}
EMBEDDING = "language_model.embed_tokens"
NVFP4, INT8 = "nvfp4", "int8_tensorwise"
_PLAIN = (torch.bfloat16, torch.float16, torch.float32)

Shapes = dict[str, tuple[int, ...]]


LayerCount = Annotated[int, Field(gt=0, le=1024)]  # shapes are computed for each


class _Stated(BaseModel):
    """What a config.json states; other keys may stand beside it. A default is transformers'."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class LanguageSizes(_Stated):
    vocab_size: PositiveInt = 151_936
    hidden_size: PositiveInt = 4096
    intermediate_size: PositiveInt = 22_016
    num_hidden_layers: LayerCount = 32
    num_attention_heads: PositiveInt = 32
    num_key_value_heads: PositiveInt = 32
    head_dim: PositiveInt = 128
    attention_bias: Literal[False] = False


class VisionSizes(_Stated):
    depth: LayerCount = 27
    hidden_size: PositiveInt = 1152
    intermediate_size: PositiveInt = 4304
    in_channels: Literal[3] = 3
    patch_size: PositiveInt = 16
    spatial_merge_size: PositiveInt = 2
    temporal_patch_size: PositiveInt = 2
    out_hidden_size: PositiveInt = 3584
    num_position_embeddings: PositiveInt = 2304
    deepstack_visual_indexes: list[NonNegativeInt] = [8, 16, 24]


class TextSizes(_Stated):
    """Of the two parts, and how many layers of the language model condition."""

    text_config: LanguageSizes = LanguageSizes()
    vision_config: VisionSizes = VisionSizes()
    layers: LayerCount = Field(CONDITIONING_LAYER, alias=LAYER_KEY)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        text, vision = self.text_config, self.vision_config
        if self.layers > text.num_hidden_layers:
            raise ValueError(
                f"it has {text.num_hidden_layers} layers, but the states after layer {self.layers} condition H3"
            )
        if vision.out_hidden_size != text.hidden_size:
            raise ValueError(f"out_hidden_size is {vision.out_hidden_size}, but hidden_size {text.hidden_size}")
        return self


def find_config(weights: Path) -> Path | None:
    """The config.json that counts: the folder's, or a Qwen3-VL's beside a lone file; None for the published sizes.

    Raises CheckpointError if what lies beside a lone file cannot be read, for then nobody knows whose it is.
    """
    if weights.is_dir():
        return weights / "config.json"
    path = weights.parent / "config.json"
    return path if path.is_file() and read_object(path).get("model_type") == MODEL_TYPE else None


def read_config_fields(weights: Path) -> dict[str, object]:
    """All that the config.json that counts says, or the published one. Raises CheckpointError naming the file."""
    path = find_config(weights)
    return read_object(path) if path else PUBLISHED_CONFIG


def read_sizes(weights: Path) -> TextSizes:
    """Of the config.json that counts, or the published ones. Raises CheckpointError naming file and fields."""
    return _parse_sizes(read_config_fields(weights), find_config(weights) or weights)


def _parse_sizes(fields: Mapping[str, object], path: Path) -> TextSizes:
    if fields.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"{path} is of a {fields.get('model_type')!r} model, expected {MODEL_TYPE}")
    try:
        return TextSizes.model_validate(fields)
    except ValidationError as exc:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in exc.errors())
        raise CheckpointError(f"{path} is not the configuration of a Qwen3-VL for H3: {wrong}") from exc


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The tensors of a folder or file that condition."""

    where: Path
    stored: Mapping[str, StoredTensor]  # by the file's names
    quantised: Mapping[str, Marker]  # by the model's layers
    pre_scales: Mapping[str, torch.dtype]  # of the model's layers whose input is scaled
    recipes: Mapping[str, Recipe]  # by the model's tensors
    ignored: frozenset[str]

    @classmethod
    def open(cls, weights: Path) -> Self:
        """Read headers and markers. Raises CheckpointError naming file and layer or tensor."""
        sizes = read_sizes(weights)
        header = _read_header(weights)
        names = _Names.found_in(header.tensors, weights)
        stored = names.select_needed(header.tensors, sizes.layers)
        markers = read_markers(stored, header.metadata)
        markers = {
            layer: marker for layer, marker in markers.items() if f"{layer}.weight" in stored
        }  # metadata has all
        quantised = {names.in_model(layer): marker for layer, marker in markers.items()}
        pre_scales = {
            layer: found.form.dtype
            for layer in quantised
            if (found := stored.get(names.in_file(layer) + ".pre_quant_scale"))
        }
        recipes = _write_recipes(sizes, names, stored, quantised, pre_scales)
        ignored = {layer + suffix for layer in markers for suffix in (MARKER_SUFFIX, ".input_scale")}
        return cls(weights, stored, quantised, pre_scales, recipes, frozenset(ignored))

    def check(self) -> None:
        """Every tensor is there in its form, and no other. Raises CheckpointError naming file and tensor."""
        check_recipes(self.recipes, self.stored, self.where, self.ignored)

    def size_bytes(self) -> int:
        """Of what conditions, as it is stored."""
        parts = {part.name for recipe in self.recipes.values() for part in recipe.parts}
        return sum(self.stored[name].form.size_bytes for name in parts)


def open_whole(weights: Path) -> TextFiles:
    """The files, if every tensor is there in its form. Reads headers only. Raises CheckpointError."""
    files = TextFiles.open(weights)
    files.check()
    return files


def check_text_encoder(weights: Path) -> None:
    """Every size and tensor is there in its form. Reads headers only. Raises CheckpointError naming file and tensor."""
    open_whole(weights)


def _read_header(weights: Path) -> Header:
    """Of all files of a folder together."""
    if weights.is_file():
        return read_header(weights)
    tensors = find_tensors(weights)
    metadata: dict[str, str] = {}
    for path in sorted({tensor.path for tensor in tensors.values()}):
        metadata |= read_header(path).metadata
    return Header(tensors, metadata)


@dataclass(frozen=True, slots=True)
class _Names:
    """What a file puts before the names of the two parts' tensors: families of files differ in nothing else."""

    language: str
    vision: str

    @classmethod
    def found_in(cls, stored: Mapping[str, StoredTensor], where: Path) -> "_Names":
        return cls(
            _find_prefix("embed_tokens.weight", stored, where), _find_prefix("patch_embed.proj.weight", stored, where)
        )

    def in_file(self, name: str) -> str:
        """The file's name of a tensor or layer of the model."""
        part, _, rest = name.partition(".")
        return (self.language if part == "language_model" else self.vision) + rest

    def in_model(self, name: str) -> str:
        """The inverse of `in_file`."""
        if name.startswith(self.vision):
            return "visual." + name.removeprefix(self.vision)
        return "language_model." + name.removeprefix(self.language)

    def select_needed(self, stored: Mapping[str, StoredTensor], layers: int) -> dict[str, StoredTensor]:
        """Without the head, the final norm, and the layers behind the one that conditions."""
        layer = re.compile(re.escape(self.language) + r"layers\.(\d+)\.")
        behind = {self.language + "norm.weight"}
        return {
            name: tensor
            for name, tensor in stored.items()
            if name not in behind
            and not name.endswith("lm_head.weight")
            and not ((found := layer.match(name)) and int(found[1]) >= layers)
        }


def _find_prefix(name: str, stored: Mapping[str, StoredTensor], where: Path) -> str:
    found = [stored_name.removesuffix(name) for stored_name in stored if stored_name.endswith(name)]
    if len(found) != 1:
        raise CheckpointError(f"{where} holds {len(found)} tensors ...{name}, expected one: is it a Qwen3-VL?")
    return found[0]


def _write_recipes(
    sizes: TextSizes,
    names: _Names,
    stored: Mapping[str, StoredTensor],
    quantised: Mapping[str, Marker],
    pre_scales: Mapping[str, torch.dtype],
) -> dict[str, Recipe]:
    """How each tensor of the model is made of the file's. Raises CheckpointError naming a layer of no use."""
    shapes, linears = text_shapes(sizes), _language_linears(sizes)
    recipes = {name: Recipe((Part(names.in_file(name), shape, _PLAIN),)) for name, shape in shapes.items()}
    for layer, marker in quantised.items():
        stored_name = names.in_file(layer)
        if marker.format == NVFP4 and layer in linears:
            made = _nvfp4_recipes(stored_name, linears[layer], stored, has_pre_scale=layer in pre_scales)
        elif marker.format == INT8 and layer == EMBEDDING and not marker.fields.get("convrot"):
            made = _int8_recipes(stored_name, shapes[f"{layer}.weight"], stored)  # rotated rows are other rows
        else:
            raise CheckpointError(
                f"{stored[stored_name + '.weight'].path}: layer {stored_name} is stored as {marker.format} "
                f"{marker.fields or ''}, which the text encoder has no use for: it takes {NVFP4} for the language "
                f"model's linear layers, and {INT8} for its embedding"
            )
        recipes |= {f"{layer}.{leaf}": recipe for leaf, recipe in made.items()}
    return recipes


def _nvfp4_recipes(
    layer: str, shape: tuple[int, int], stored: Mapping[str, StoredTensor], *, has_pre_scale: bool
) -> dict[str, Recipe]:
    """Of the tensors of an NVFP4Linear, by their names in it."""
    rows, columns = shape
    if columns % BLOCK:
        raise CheckpointError(
            f"{stored[layer + '.weight'].path}: layer {layer} is stored as {NVFP4}, but its {columns} input features "
            f"are not whole blocks of {BLOCK} values"
        )
    forms = packed_forms(rows, columns)
    recipes = {
        "weight": Recipe((Part(f"{layer}.weight", forms["weight"].shape, (torch.uint8,)),)),
        # Some writers know no dtype of 8 bits but bytes.
        "weight_scale": Recipe(
            (Part(f"{layer}.weight_scale", forms["weight_scale"].shape, (SCALE_DTYPE, torch.uint8)),),
            lambda parts: only(parts).view(SCALE_DTYPE),
        ),
        "weight_scale_2": _scale_recipe(f"{layer}.weight_scale_2", (), stored),
    }
    if has_pre_scale:
        recipes["pre_quant_scale"] = Recipe((Part(f"{layer}.pre_quant_scale", (columns,), _PLAIN),))
    return recipes


def _int8_recipes(layer: str, shape: tuple[int, ...], stored: Mapping[str, StoredTensor]) -> dict[str, Recipe]:
    """Of an embedding with one scale for each row, by the tensors' names in it."""
    return {
        "weight": Recipe((Part(f"{layer}.weight", shape, (torch.int8,)),)),
        "weight_scale": _scale_recipe(f"{layer}.weight_scale", (shape[0], 1), stored),
    }


def _scale_recipe(name: str, shape: tuple[int, ...], stored: Mapping[str, StoredTensor]) -> Recipe:
    """Writers differ in how many axes of length 1 a scale has, and some have one scale for all rows."""
    found = stored.get(name)
    if found and math.prod(found.form.shape) in (1, math.prod(shape)):
        return Recipe((Part(name, found.form.shape, (torch.float32,)),), partial(_spread, shape=shape))
    return Recipe((Part(name, shape, (torch.float32,)),))


def _spread(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    return only(parts).reshape(-1).expand(math.prod(shape)).reshape(shape)


def text_shapes(sizes: TextSizes) -> Shapes:
    """Of each tensor of transformers' Qwen3VLModel up to the layer that conditions, none of them quantised."""
    text = sizes.text_config
    shapes: Shapes = {f"{EMBEDDING}.weight": (text.vocab_size, text.hidden_size)}
    shapes |= {f"{name}.weight": shape for name, shape in _language_linears(sizes).items()}
    for number in range(sizes.layers):
        layer = f"language_model.layers.{number}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{norm}.weight"] = (text.hidden_size,)
        for norm in ("q_norm", "k_norm"):
            shapes[f"{layer}.self_attn.{norm}.weight"] = (text.head_dim,)
    return shapes | _vision_shapes(sizes.vision_config)


def _language_linears(sizes: TextSizes) -> dict[str, tuple[int, int]]:
    """Output and input features of the language model's linear layers, which have no bias."""
    text = sizes.text_config
    hidden, inner = text.hidden_size, text.intermediate_size
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    return {
        f"language_model.layers.{number}.{name}": shape
        for number in range(sizes.layers)
        for name, shape in linears.items()
    }


def _vision_shapes(vision: VisionSizes) -> Shapes:
    width, inner = vision.hidden_size, vision.intermediate_size
    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    shapes = _layer("visual.patch_embed.proj", width, *patch)
    shapes["visual.pos_embed.weight"] = (vision.num_position_embeddings, width)
    for number in range(vision.depth):
        block = f"visual.blocks.{number}"
        shapes |= _layer(f"{block}.norm1", width) | _layer(f"{block}.norm2", width)
        shapes |= _layer(f"{block}.attn.qkv", 3 * width, width) | _layer(f"{block}.attn.proj", width, width)
        shapes |= _layer(f"{block}.mlp.linear_fc1", inner, width) | _layer(f"{block}.mlp.linear_fc2", width, inner)
    merged = width * vision.spatial_merge_size**2
    shapes |= _merger_shapes("visual.merger", width, merged, vision.out_hidden_size)
    for number in range(len(vision.deepstack_visual_indexes)):
        # These norm what has been merged already.
        shapes |= _merger_shapes(f"visual.deepstack_merger_list.{number}", merged, merged, vision.out_hidden_size)
    return shapes


def _merger_shapes(name: str, normed: int, merged: int, outer: int) -> Shapes:
    fc1, fc2 = _layer(f"{name}.linear_fc1", merged, merged), _layer(f"{name}.linear_fc2", outer, merged)
    return _layer(f"{name}.norm", normed) | fc1 | fc2


def _layer(name: str, *shape: int) -> Shapes:
    """Weight and bias of a linear layer, a convolution or a norm; output channels first."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
