"""The files of both autoencoders: which layout a folder has, and where each tensor lies. Imports no diffusers.

The layout is told from what a folder holds. In diffusers' own, config.json has the class's arguments and the tensors
have its names. In the official one, video_vae/config.json is a wrapper that points to a source folder, with other
names, q, k and v of a head together, and [gate; up] where the class wants [up; gate]; audio_vae has the class's names,
and its sizes in metadata.json.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from h3.errors import CheckpointError
from h3.families import swap_halves, swap_row_axes
from h3.json_file import read_object
from h3.tensor_file import StoredTensor, find_tensors
from h3.vae_config import (
    AudioVaeConfig,
    Fields,
    Model,
    OfficialAudioSizes,
    OfficialSource,
    OfficialWrapper,
    VideoVaeConfig,
    parse,
)
from h3.vae_shapes import audio_shapes, video_shapes
from h3.weights import Part, Recipe, check_recipes

# Modules and tensors of the video class that are fp32 in any precision: its `_keep_in_fp32_modules`.
KEPT_IN_FP32 = frozenset({"encoder", "quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2"})
_FP32 = (torch.float32,)
_FP32_OR_BF16 = (torch.float32, torch.bfloat16)
_UNUSED = frozenset({"decoder.mask_token"})  # training's
_PROJECTIONS = ("q", "k", "v")
_OFFICIAL_NAMES = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^encoder\.down_blocks\.(\d+)\.resnets\.", r"encoder.down.\1.block."),
        (r"^encoder\.down_blocks\.(\d+)\.downsamplers\.0\.", r"encoder.down.\1.downsample."),
        (r"\.conv_shortcut\.", ".nin_shortcut."),
        (r"^decoder\.proj_in\.", "decoder.x_embedder."),
        (r"\.attn\.to_[qkv]\.", ".attn.to_qkv."),
        (r"\.attn\.to_out\.0\.", ".attn.to_out."),
        (r"\.ff\.net\.0\.proj\.", ".ff.w1."),
        (r"\.ff\.net\.2\.", ".ff.w2."),
    )
]


@dataclass(frozen=True, slots=True)
class VaeFiles(Generic[Model]):
    """What an autoencoder's folder holds."""

    config: Model
    tensors: Path  # the file or folder whose tensors count
    recipes: Mapping[str, Recipe]  # by the class's tensor names
    ignored: frozenset[str] = frozenset()

    def check(self) -> dict[str, StoredTensor]:
        """All tensors that are there, if they are those that the config asks for. Reads headers only.

        Raises CheckpointError naming file and tensor.
        """
        stored = find_tensors(self.tensors)
        check_recipes(self.recipes, stored, self.tensors, self.ignored)
        return stored


def read_video_vae(folder: Path) -> VaeFiles[VideoVaeConfig]:
    """Of either layout. Raises CheckpointError naming the file and the fields that are missing or wrong."""
    path = folder / "config.json"
    fields = read_object(path)
    if "source_path" not in fields:
        config = parse(VideoVaeConfig, fields, path)
        recipes = {name: _as_named(name, shape, _dtypes_of(name)) for name, shape in video_shapes(config).items()}
        return VaeFiles(config, folder, recipes)
    wrapper = parse(OfficialWrapper, fields, path)
    source = folder / wrapper.source_path / "config.json"
    arguments = parse(OfficialSource, read_object(source), source).arguments(wrapper)
    config = parse(VideoVaeConfig, arguments, f"{path} with {source}")
    recipes = {name: _official_recipe(name, shape, config) for name, shape in video_shapes(config).items()}
    return VaeFiles(config, source.parent / wrapper.source_safetensors_path, recipes, _UNUSED)


def read_audio_vae(folder: Path) -> VaeFiles[AudioVaeConfig]:
    """Of either layout. Raises CheckpointError naming the file and the fields that are missing or wrong."""
    path, metadata = folder / "config.json", folder / "metadata.json"
    fields = read_object(path)
    if metadata.is_file():
        sizes = _read_official_sizes(metadata)
        for name in sizes.keys() & fields.keys():
            if fields[name] != sizes[name]:
                raise CheckpointError(f"{path}: {name} is {fields[name]}, but {sizes[name]} in {metadata.name}")
        fields |= sizes
    elif "decoder_rates" not in fields:
        raise CheckpointError(f"{metadata} is missing, and {path} does not state what it would: fetch it again")
    config = parse(AudioVaeConfig, fields, path)
    recipes = {name: _as_named(name, shape, _FP32) for name, shape in audio_shapes(config).items()}
    return VaeFiles(config, folder, recipes)


def _read_official_sizes(path: Path) -> Fields:
    match read_object(path):
        case {"metadata": {"kwargs": dict(stated)}}:
            return parse(OfficialAudioSizes, stated, f"{path} (metadata.kwargs)").arguments()
    raise CheckpointError(f"{path} has no metadata.kwargs: fetch it again")


def video_vae_files(folder: Path) -> Path:
    """The file or folder whose tensors count."""
    return read_video_vae(folder).tensors


def check_video_vae(folder: Path) -> None:
    """Every field and tensor is there in its form. Reads headers only. Raises CheckpointError."""
    read_video_vae(folder).check()


def check_audio_vae(folder: Path) -> None:
    """Every field and tensor is there in its form. Reads headers only. Raises CheckpointError."""
    read_audio_vae(folder).check()


def is_kept_in_fp32(name: str) -> bool:
    """Whether a tensor of the video class is fp32 in any precision."""
    return not KEPT_IN_FP32.isdisjoint(name.split("."))


def _dtypes_of(name: str) -> tuple[torch.dtype, ...]:
    """What diffusers may have stored one of the video class's tensors in."""
    return _FP32 if is_kept_in_fp32(name) else _FP32_OR_BF16


def _as_named(name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Recipe:
    return Recipe((Part(name, shape, dtypes),))


def official_name(name: str) -> str:
    """Of the stored tensor that holds one of the video class's tensors."""
    for pattern, official in _OFFICIAL_NAMES:
        name = pattern.sub(official, name)
    return name


def _official_recipe(name: str, shape: tuple[int, ...], config: VideoVaeConfig) -> Recipe:
    if match := re.search(r"\.attn\.to_([qkv])\.", name):
        # Three recipes read the same tensor, and two of them find it in the page cache.
        shape = (3 * shape[0], *shape[1:])
        heads, index = config.decoder_num_attention_heads, _PROJECTIONS.index(match[1])
        # Cloned, because a view would keep the other two in memory.
        return _built(name, shape, lambda qkv: swap_row_axes(qkv, heads, 3).chunk(3)[index].clone())
    if ".ff.net.0.proj." in name:
        return _built(name, shape, swap_halves)
    return _as_named(official_name(name), shape, _FP32)


def _built(name: str, shape: tuple[int, ...], build: Callable[[Tensor], Tensor]) -> Recipe:
    return Recipe((Part(official_name(name), shape, _FP32),), lambda parts: build(*parts))


def official_video_tensors(tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """The class's tensors under the official names and in their row orders: what the recipes undo."""
    official: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".attn.to_q." in name:
            parts = [tensors[name.replace(".to_q.", f".to_{projection}.")] for projection in _PROJECTIONS]
            official[official_name(name)] = swap_row_axes(torch.cat(parts), 3, heads)
        elif ".ff.net.0.proj." in name:
            official[official_name(name)] = swap_halves(tensor)
        else:
            official.setdefault(official_name(name), tensor)
    return official
