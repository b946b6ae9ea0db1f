"""Builds the part of a Qwen3-VL that conditions H3 and fills it from the files that `h3/text_files.py` describes."""

from copy import deepcopy
from pathlib import Path

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]  # it has no types
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoModel, Qwen3VLConfig, Qwen3VLModel

from h3.errors import CheckpointError
from h3.nvfp4 import NVFP4Linear
from h3.text_files import EMBEDDING, TextFiles, find_config, open_whole, read_config_fields, read_sizes
from h3.weights import fill


def load_model(weights: Path, config: Qwen3VLConfig, device: torch.device, dtype: torch.dtype) -> Qwen3VLModel:
    """The model whose last hidden state is what conditions, from a folder (one file or shards) or a single file.

    Raises CheckpointError naming file and layer or tensor.
    """
    files = open_whole(weights)
    model = _build(config, dtype)
    _put_in_quantised_layers(model, files)
    fill(model, files.recipes, files.stored, device)
    return model.to(device).eval()  # the rotary frequencies are in no file, and were still on the CPU


def read_config(weights: Path) -> Qwen3VLConfig:
    """With as many layers as condition, as `read_sizes` has them. Raises CheckpointError naming the file."""
    layers = read_sizes(weights).layers
    try:
        config = Qwen3VLConfig.from_dict(deepcopy(read_config_fields(weights)))  # it writes into what it is given
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as exc:
        where = find_config(weights) or weights
        raise CheckpointError(f"{where} is not the configuration of a Qwen3-VL ({exc}): fetch it again") from exc
    config.text_config.num_hidden_layers = layers
    return config


def _build(config: Qwen3VLConfig, dtype: torch.dtype) -> Qwen3VLModel:
    """Parameters without memory, buffers with."""
    with init_empty_weights(include_buffers=False):
        model = AutoModel.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.language_model.norm = nn.Identity()
    return model


class Int8Embedding(nn.Module):
    """Rows of int8 with one scale each, widened when they are looked up: 0.8 GB and not 1.6 for 151,936 tokens."""

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(rows, width, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.empty(rows, 1, dtype=torch.float32))
        self._dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        return (self.weight[ids] * self.weight_scale[ids]).to(self._dtype)


def _put_in_quantised_layers(model: Qwen3VLModel, files: TextFiles) -> None:
    """Replace each marked layer by one that computes from what is stored."""
    for name, marker in files.quantised.items():
        layer = model.get_submodule(name)
        with torch.device("meta"):
            if name == EMBEDDING:
                quantised: nn.Module = Int8Embedding(layer.num_embeddings, layer.embedding_dim, layer.weight.dtype)
            else:
                quantised = _packed_linear(layer, marker.full_precision, files.pre_scales.get(name))
        model.set_submodule(name, quantised)


def _packed_linear(layer: nn.Linear, full_precision: bool, pre_scale: torch.dtype | None) -> NVFP4Linear:
    packed = NVFP4Linear(
        layer.in_features, layer.out_features, has_pre_scale=pre_scale is not None, full_precision=full_precision
    )
    if pre_scale is not None:  # kept as stored: rounding it to bf16 would cost 0.2 %
        packed.pre_quant_scale = torch.empty(layer.in_features, dtype=pre_scale)
    return packed
