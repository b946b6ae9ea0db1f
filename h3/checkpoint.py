"""Reads and writes denoiser weights: tensor names, shards and row orders of the checkpoint files.

A folder is checked from its file headers before anything is loaded, so that a missing or cut-short file is named in
milliseconds and before GPU time is spent. Tensors stream one by one to their device.

Row orders: the official shards interleave q, k and v head by head ([H, 3, D] rows); the model wants them apart
([3, H, D] rows). A file in the wrong order loads without any error and renders noise, so the order is a property of
the file family, never guessed from the weights.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from h3.config import DenoiserConfig
from h3.errors import CheckpointError
from h3.model import Denoiser

PARTITION = "FL2VA"  # text, and first or last frame, to video and audio
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAMES = ("model.safetensors", "diffusion_pytorch_model.safetensors")
_LENGTH_BYTES = 8  # the header's length, little endian, opens the file
_LARGEST_HEADER = 100 * 2**20  # bytes; the format's own limit
_DIGEST_SAMPLE = 4096  # bytes of each tensor


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where the parts of a model lie, in the official layout (its text-to-video partition)."""

    transformer: Path
    text_encoder: Path
    tokenizer: Path
    video_vae: Path
    audio_vae: Path

    @classmethod
    def below(cls, root: Path) -> "ModelFolder":
        """The layout below a checkpoint's root, or below its partition folder itself."""
        partition = root if (root / "transformer").is_dir() else root / PARTITION
        return cls(*(partition / field.name for field in fields(cls)))

    def check(self) -> DenoiserConfig:
        """Check every part from its headers and return the denoiser's sizes.

        Raises CheckpointError naming what is missing, cut short or of no use.
        """
        config = DenoiserConfig.from_file(self.transformer / "config.json")
        _refuse_other_names(self.transformer, _wanted(config), find_tensors(self.transformer))
        for part in (self.text_encoder, self.video_vae, self.audio_vae):
            _require(part / "config.json")
            find_tensors(part)
        _require(self.tokenizer / "tokenizer.json")
        return config

    def size_bytes(self) -> int:
        """Of all tensors together."""
        parts = (self.transformer, self.text_encoder, self.video_vae, self.audio_vae)
        return sum(tensor.end - tensor.begin for part in parts for tensor in find_tensors(part).values())

    def digest(self) -> str:
        """Identifies the whole model: its JSON files, and each tensor's name, size and first bytes.

        A sample, because hashing 134 GB takes minutes and a changed weight file differs at the start of some tensor.
        """
        sha256 = hashlib.sha256()
        for part in (getattr(self, field.name) for field in fields(self)):
            for path in sorted(part.glob("*.json")):
                sha256.update(path.read_bytes())
        for part in (self.transformer, self.text_encoder, self.video_vae, self.audio_vae):
            for name, tensor in sorted(find_tensors(part).items()):
                sha256.update(f"{name} {tensor.end - tensor.begin}\n".encode() + _first_bytes(tensor))
        return sha256.hexdigest()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's bytes lie in its file."""

    path: Path
    begin: int  # from the start of the file
    end: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, all of them whole.

    Raises CheckpointError naming the file and, if it is cut short, the first tensor that is not whole.
    """
    _require(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(size - _LENGTH_BYTES, _LARGEST_HEADER):
            raise CheckpointError(f"{path} ({size} bytes) is no safetensors file or ends in its header: fetch it again")
        header = _parse_header(path, file.read(length))
    payload = _LENGTH_BYTES + length
    tensors = {name: StoredTensor(path, payload + begin, payload + end) for name, (begin, end) in header.items()}
    _refuse_truncated(path, size, tensors)
    return tensors


def _parse_header(path: Path, header: bytes) -> dict[str, tuple[int, int]]:
    """Tensor name to its first byte and the one after its last, counted from the payload."""
    try:
        entries = [(name, entry) for name, entry in json.loads(header).items() if name != "__metadata__"]
        return {name: (int(begin), int(end)) for name, entry in entries for begin, end in [entry["data_offsets"]]}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise CheckpointError(f"{path} has a header that is not safetensors ({exc}): fetch it again") from exc


def _refuse_truncated(path: Path, size: int, tensors: dict[str, StoredTensor]) -> None:
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if tensor.end > size:
            raise CheckpointError(
                f"{path} is cut short in tensor {name}, which ends at byte {tensor.end} of {size}: fetch it again"
            )


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder: of one file, or of shards checked against their index. Reads headers only.

    Raises CheckpointError naming the shard and tensor that is missing or cut short.
    """
    if single := next((folder / name for name in SINGLE_NAMES if (folder / name).is_file()), None):
        return read_header(single)
    tensors: dict[str, StoredTensor] = {}
    shards = _read_index(folder / INDEX_NAME)
    for name, shard in shards.items():
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / shard} is missing, which holds tensor {name}: fetch it again")
    for shard in sorted(set(shards.values())):
        tensors |= read_header(folder / shard)
    for name, shard in shards.items():
        if name not in tensors:
            raise CheckpointError(f"{folder / shard} lacks tensor {name}, which {INDEX_NAME} lists: fetch it again")
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name to shard file name."""
    try:
        return dict(json.loads(path.read_text())["weight_map"])
    except FileNotFoundError as exc:
        raise CheckpointError(f"{path} is missing: is {path.parent} the folder of a checkpoint?") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise CheckpointError(f"{path} is not an index of shards ({exc!r}): fetch it again") from exc


def _first_bytes(tensor: StoredTensor) -> bytes:
    with tensor.path.open("rb") as file:
        file.seek(tensor.begin)
        return file.read(min(_DIGEST_SAMPLE, tensor.end - tensor.begin))


def _require(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: fetch it again")


def _wanted(config: DenoiserConfig) -> dict[str, Tensor]:
    """Every tensor of a denoiser of that size, without memory."""
    with torch.device("meta"):
        return Denoiser(config).state_dict()


def load_denoiser(folder: Path, device: torch.device) -> Denoiser:
    """Build the denoiser from an official folder: config.json, index and shards.

    Raises CheckpointError naming file and tensor if one is missing, unknown, or of another shape or dtype.
    """
    config = DenoiserConfig.from_file(folder / "config.json")
    tensors = find_tensors(folder)
    with torch.device("meta"):
        model = Denoiser(config)
    wanted = model.state_dict()
    _refuse_other_names(folder, wanted, tensors)
    for name, tensor in _stream(tensors, device):
        _refuse_other_form(tensors[name].path, name, tensor, wanted[name])
        weight = split_qkv(tensor, config) if name.endswith("qkv_proj.weight") else tensor
        model.load_state_dict({name: weight}, strict=False, assign=True)
    return model.eval().requires_grad_(False)


def _stream(tensors: dict[str, StoredTensor], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """The tensors in file order, one at a time on the device."""
    by_path: dict[Path, list[str]] = defaultdict(list)
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].path, item[1].begin)):
        by_path[stored.path].append(name)
    for path, names in by_path.items():
        with safe_open(path, framework="pt", device=str(device)) as file:
            for name in names:
                yield name, file.get_tensor(name)


def _refuse_other_names(folder: Path, wanted: dict[str, Tensor], found: dict[str, StoredTensor]) -> None:
    if missing := sorted(wanted.keys() - found.keys()):
        raise CheckpointError(f"{folder} lacks tensor {missing[0]} (and {len(missing) - 1} more)")
    if unknown := sorted(found.keys() - wanted.keys()):
        raise CheckpointError(
            f"{folder} holds tensor {unknown[0]} (and {len(unknown) - 1} more) that H3 has no place for"
        )


def _refuse_other_form(path: Path, name: str, found: Tensor, wanted: Tensor) -> None:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise CheckpointError(
            f"{path}: {name} is {list(found.shape)} {found.dtype}, expected {list(wanted.shape)} {wanted.dtype}"
        )


def split_qkv(weight: Tensor, config: DenoiserConfig) -> Tensor:
    """Rows [H, 3, D] (per head interleaved, as the official shards have them) to [3, H, D]."""
    return _swap_row_axes(weight, config.num_attention_heads, 3)


def interleave_qkv(weight: Tensor, config: DenoiserConfig) -> Tensor:
    """The inverse of `split_qkv`."""
    return _swap_row_axes(weight, 3, config.num_attention_heads)


def _swap_row_axes(weight: Tensor, first: int, second: int) -> Tensor:
    return weight.unflatten(0, (first, second, -1)).transpose(0, 1).flatten(0, 2).contiguous()


def save_denoiser(model: Denoiser, folder: Path, shards: int) -> None:
    """Write the official layout: config.json, index and `shards` files of about equal tensor count."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(model.config.model_dump_json(indent=2))
    weights = {
        name: interleave_qkv(tensor, model.config) if name.endswith("qkv_proj.weight") else tensor.contiguous()
        for name, tensor in model.state_dict().items()
    }
    index: dict[str, str] = {}
    names = sorted(weights)
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        chosen = names[number::shards]
        save_file({name: weights[name] for name in chosen}, folder / shard)
        index |= dict.fromkeys(chosen, shard)
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=2, sort_keys=True))
