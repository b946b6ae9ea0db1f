"""Which layers of a checkpoint are quantised, and how, as ComfyUI's markers say. Knows no layer.

A marker is JSON, `{"format": "nvfp4", ...}`, and stands in a tensor `LAYER.comfy_quant` of bytes, in the file's own
metadata, or in both. What is not marked is stored plain. Names of files say nothing: publishers reuse them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from h3.errors import CheckpointError
from h3.tensor_file import StoredTensor, TensorReader

MARKER_SUFFIX = ".comfy_quant"
METADATA_KEY = "_quantization_metadata"
_FULL_PRECISION = "full_precision_matrix_mult"
_LARGEST_MARKER = 2**16  # bytes; a real one has some fifty


@dataclass(frozen=True, slots=True)
class Marker:
    """How one layer is stored."""

    format: str
    full_precision: bool  # its products want activations that are not quantised
    fields: Mapping[str, object]  # whatever else the marker says


def read_markers(stored: Mapping[str, StoredTensor], metadata: Mapping[str, str]) -> dict[str, Marker]:
    """The marker of every layer that has one, by the name of the layer in the file.

    Raises CheckpointError naming file and layer if a marker is not one, or if two of one layer differ.
    """
    markers = _read_metadata(_where(stored), metadata.get(METADATA_KEY))
    with TensorReader(torch.device("cpu")) as reader:
        for name, tensor in stored.items():
            if not name.endswith(MARKER_SUFFIX):
                continue
            layer = name.removesuffix(MARKER_SUFFIX)
            if tensor.form.dtype != torch.uint8 or tensor.form.size_bytes > _LARGEST_MARKER:
                raise CheckpointError(f"{tensor.path}: {name} is {tensor.form}, expected the bytes of a marker")
            marker = _parse(tensor.path, layer, _decode(tensor.path, layer, reader.read(tensor).numpy().tobytes()))
            if markers.setdefault(layer, marker) != marker:
                raise CheckpointError(
                    f"{tensor.path}: layer {layer} is marked {markers[layer]} in the metadata and {marker} in {name}"
                )
    return markers


def encode_marker(full_precision: bool) -> Tensor:
    """The bytes that mark a layer as NVFP4: uint8 [size]."""
    marker = {"format": "nvfp4"} | ({_FULL_PRECISION: True} if full_precision else {})
    return torch.tensor(list(json.dumps(marker).encode()), dtype=torch.uint8)


def _where(stored: Mapping[str, StoredTensor]) -> Path:
    return next((tensor.path for tensor in stored.values()), Path())


def _read_metadata(path: Path, text: str | None) -> dict[str, Marker]:
    if text is None:
        return {}
    match _decode(path, METADATA_KEY, text):
        case {"layers": dict(layers)}:
            return {layer: _parse(path, layer, marker) for layer, marker in layers.items()}
    raise CheckpointError(f'{path}: {METADATA_KEY} in the metadata is no {{"layers": {{...}}}}')


def _decode(path: Path, name: str, text: str | bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path}: the marker of {name} is not JSON ({exc}): fetch the file again") from exc


def _parse(path: Path, layer: str, marker: object) -> Marker:
    match marker:
        case {"format": str(name), **rest}:
            fields = {str(field): value for field, value in rest.items()}
            if isinstance(full_precision := fields.pop(_FULL_PRECISION, False), bool):
                return Marker(name, full_precision, fields)
    raise CheckpointError(f"{path}: the marker of {layer} is {marker}, which names no format")
