"""Writes the denoiser's files: the official shards, diffusers' layout, and ComfyUI's pruned files, bf16 or NVFP4.

Tensors stream through one at a time, and a conversion that was stopped goes on where it was. Each file says of which
weights it is made, for other weights may have the same shapes. What a target cannot hold is refused before anything is
written. Two targets lose something: pruning replaces the time embedding by a short curve (below), and NVFP4 rounds the
blocks' linear layers to 4 bits.

Pruning: every AdaLN projection reads the same function of time, the activated embedding. Its values on an even grid lie
close to a plane of few dimensions, so they are written as mean + coefficients x basis (principal components); the
basis goes into the projections' weights, the mean into their biases, and the table of coefficients stands for time.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from h3.checkpoint import DenoiserFiles, skeleton, stored_dtypes
from h3.config import DenoiserConfig
from h3.errors import CheckpointError
from h3.families import QKV_ORDER, Family, QkvOrder, storage
from h3.markers import encode_marker
from h3.model import MODEL_DTYPE, Denoiser, TimeEmbedder, rotary_frequencies
from h3.model_folder import digest
from h3.nvfp4 import NVFP4Linear, PackedWeight, dequantise, packed_forms, quantise
from h3.tensor_file import TensorForm, TensorReader, TensorWriter, read_header
from h3.untrained import Untrained

CURVE_POINTS, CURVE_WIDTH = 1025, 8  # as published
SHARD_BYTES = 5 * 10**9
_OFFICIAL_NAMES = {  # the model's own implementation reads these, others the second
    "token_refiner_num_layers": "num_refiner_layers",
    "ffn_hidden_size": "ffn_dim",
    "latents_dim": "in_channels",
    "audio_latents_dim": "audio_in_channels",
    "timestep_input_dim": "freq_dim",
    "time_embed_hidden_size": "time_embed_hidden_dim",
    "rope_inv_freq_len": "rope_freq_dim",
}
_ORIGIN_KEY = "h3render_origin"  # in the metadata of a file
_PACKED = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")  # of each block, in an NVFP4 file

log = logging.getLogger(__name__)


class Target(StrEnum):
    """What can be written."""

    OFFICIAL = "official"
    DIFFUSERS = "diffusers"
    COMFY_PRUNED = "comfy-pruned"
    COMFY_NVFP4 = "comfy-nvfp4"

    @property
    def family(self) -> Family:
        return {Target.OFFICIAL: Family.OFFICIAL, Target.DIFFUSERS: Family.DIFFUSERS}.get(self, Family.COMFY)


Read = Callable[[str], Tensor]  # one of the model's tensors, by name
Packed = Mapping[str, bool]  # layer to whether it insists on full precision


def save_denoiser(model: Denoiser, target: Path, to: Target, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a model from memory, to where nothing is. Raises CheckpointError for what the target cannot hold."""
    Conversion(model.config, model.state_dict().__getitem__, _find_packed(model), None).write(target, to, shard_bytes)


def convert(source: Path, target: Path, to: Target, order: QkvOrder | None = None) -> None:
    """Write the denoiser of `source` in another format, tensor by tensor. Raises CheckpointError, ConfigError.

    `order` states how the rows of q, k and v lie in the source, where its family is mistaken.
    """
    files = DenoiserFiles.open(source, order)
    model, recipes = files.plan(None)
    wanted = model.state_dict()
    origin = f"{digest([source])} {files.order}"

    def read(name: str) -> Tensor:
        if name not in recipes:
            return rotary_frequencies(files.config)  # the one that a family leaves out
        return recipes[name].read(files.stored, reader).to(wanted[name].dtype)

    conversion = Conversion(files.config, read, _find_packed(model), origin)
    with TensorReader(torch.device("cpu")) as reader:
        files.confirm_order(reader)
        conversion.write(target, to, SHARD_BYTES)


def save_untrained(source: Untrained, target: Path, to: Target, device: torch.device) -> None:
    """Write random weights, each tensor drawn on the device when its turn comes; run again, keep what is there.

    Raises CheckpointError for what the target cannot hold, and if something else is there already.
    """
    origin = f"{source.digest} on {device.type}"  # which draws other values on another
    Conversion(source.config, source.draw(device), {}, origin).write(target, to, SHARD_BYTES)


def _find_packed(model: Denoiser) -> Packed:
    return {name: layer.full_precision for name, layer in model.named_modules() if isinstance(layer, NVFP4Linear)}


@dataclass(frozen=True, slots=True)
class Unit:
    """Stored tensors that are made together."""

    forms: dict[str, TensorForm]
    make: Callable[[], list[Tensor]]

    @property
    def size_bytes(self) -> int:
        return sum(form.size_bytes for form in self.forms.values())


@dataclass(frozen=True, slots=True)
class Conversion:
    """One model on its way into files."""

    config: DenoiserConfig
    read: Read
    packed: Packed  # layers that are NVFP4 already
    origin: str | None  # identifies the weights, so that what is written of them already is kept

    def write(self, target: Path, to: Target, shard_bytes: int) -> None:
        """Raises CheckpointError for what the target cannot hold, and if something else is there already."""
        if self.config.is_pruned and to.family is not Family.COMFY:
            raise CheckpointError(
                f"a pruned checkpoint cannot become {to}: its time embedding is gone; take the unpruned one"
            )
        units = list(self._units(to))
        if to.family is Family.COMFY:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._write_file(target, units)
            return
        self._write_shards(target, to, _split(units, shard_bytes))

    def _write_shards(self, folder: Path, to: Target, shards: list[list[Unit]]) -> None:
        stem, count = "model" if to is Target.OFFICIAL else "diffusion_pytorch_model", len(shards)
        files = {
            folder / f"{stem}-{i:05d}-of-{count:05d}.safetensors": shard for i, shard in enumerate(shards, start=1)
        }
        index = {tensor: path.name for path, shard in files.items() for unit in shard for tensor in unit.forms}
        total = sum(unit.size_bytes for shard in shards for unit in shard)
        # config.json last, so that a folder has it when it is whole.
        contents = {
            folder / f"{stem}.safetensors.index.json": {"metadata": {"total_size": total}, "weight_map": index},
            folder / "config.json": _describe(self.config, to),
        }
        texts = {path: json.dumps(content, indent=2, sort_keys=True) + "\n" for path, content in contents.items()}
        for path, text in texts.items():
            if path.exists() and path.read_bytes() != text.encode():
                raise _is_other(path)
        folder.mkdir(parents=True, exist_ok=True)
        for path, shard in files.items():
            self._write_file(path, shard)
        for path, text in texts.items():
            path.write_text(text)

    def _write_file(self, path: Path, units: list[Unit]) -> None:
        """One file, unless it is there already and whole. Raises CheckpointError if another one is."""
        forms = {name: form for unit in units for name, form in unit.forms.items()}
        metadata = {"format": "pt"} | ({_ORIGIN_KEY: self.origin} if self.origin else {})
        if path.exists():
            found = read_header(path)
            found_forms = {name: tensor.form for name, tensor in found.tensors.items()}
            if self.origin is None or (found.metadata, found_forms) != (metadata, forms):
                raise _is_other(path)
            return
        with TensorWriter(path, forms, metadata, resume=self.origin is not None) as writer:
            for unit in units:
                left = set(writer.remaining) & unit.forms.keys()
                for name, tensor in zip(unit.forms, unit.make() if left else (), strict=bool(left)):
                    if name in left:
                        writer.write(tensor)
            writer.finish()

    def _units(self, to: Target) -> Iterator[Unit]:
        """What the target holds, in the model's order."""
        curve = self._curve() if to.family is Family.COMFY and not self.config.is_pruned else None
        config = curve.prune(self.config) if curve else self.config
        for name, tensor in skeleton(config, {}).state_dict().items():
            layer, _, leaf = name.rpartition(".")
            shape = tuple(tensor.shape)
            if curve and name == "adaln_t_table":
                yield Unit({name: TensorForm(torch.float32, shape)}, lambda: [curve.table])
            elif curve and layer.endswith("adaln_proj.linear"):
                if leaf == "weight":
                    yield self._pruned_projection(layer, shape, curve)
            elif to is Target.COMFY_NVFP4 and layer.startswith("blocks.") and layer.endswith(_PACKED):
                yield self._packed_layer(layer, shape)
            elif unit := self._plain(name, shape, config, to):
                yield unit

    def _plain(self, name: str, shape: tuple[int, ...], config: DenoiserConfig, to: Target) -> Unit | None:
        """A tensor that is stored as a number format of torch; None if the target leaves it out."""
        kept = storage(QKV_ORDER[to.family], name, shape, config)
        if kept is None:
            return None
        dtype = stored_dtypes(name, config)[0]
        forms = {part: TensorForm(dtype, part_shape) for part, part_shape in kept.parts.items()}
        return Unit(forms, lambda: kept.save(_narrow(name, self.read_plain(name), dtype)))

    def read_plain(self, name: str) -> Tensor:
        """One of the model's tensors, unpacked if it is packed."""
        layer = name.rpartition(".")[0]
        return dequantise(self._read_packed(layer), MODEL_DTYPE) if layer in self.packed else self.read(name)

    def _read_packed(self, layer: str) -> PackedWeight:
        return PackedWeight(*(self.read(f"{layer}.{leaf}") for leaf in ("weight", "weight_scale", "weight_scale_2")))

    def _packed_layer(self, layer: str, shape: tuple[int, ...]) -> Unit:
        marker = encode_marker(full_precision=self.packed.get(layer, False))
        forms = {f"{layer}.{leaf}": form for leaf, form in packed_forms(*shape).items()}
        forms[f"{layer}.comfy_quant"] = TensorForm(torch.uint8, tuple(marker.shape))

        def make() -> list[Tensor]:
            packed = self._read_packed(layer) if layer in self.packed else quantise(self.read(f"{layer}.weight"))
            return [packed.codes, packed.scales, packed.scale, marker]

        return Unit(forms, make)

    def _curve(self) -> "Curve":
        embedder = TimeEmbedder(self.config)
        embedder.load_state_dict({name: self.read(f"time_embedder.{name}") for name in embedder.state_dict()})
        return fit_curve(embedder.double(), self.config.time_embed_dim)

    def _pruned_projection(self, layer: str, shape: tuple[int, ...], curve: "Curve") -> Unit:
        def make() -> list[Tensor]:
            weight, bias = self.read(f"{layer}.weight").float(), self.read(f"{layer}.bias").float()
            found = (weight @ curve.basis.T, bias + weight @ curve.mean)
            return [_narrow(name, values, torch.float16) for name, values in zip(shapes, found, strict=True)]

        shapes = {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
        return Unit({name: TensorForm(torch.float16, size) for name, size in shapes.items()}, make)


def _narrow(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """In the dtype. Raises CheckpointError if fp16 is asked to hold more than it can."""
    narrowed = values.to(dtype)
    if dtype == torch.float16 and not narrowed.isfinite().all():
        raise CheckpointError(f"{name} has magnitudes up to {values.abs().max():.3g}, which fp16 cannot hold")
    return narrowed


@dataclass(frozen=True, slots=True)
class Curve:
    """The activated time embedding on an even grid, as mean + table x basis. fp32."""

    table: Tensor  # [P, R]
    basis: Tensor  # [R, D], orthonormal
    mean: Tensor  # [D]
    error: float  # relative, of all points

    def prune(self, config: DenoiserConfig) -> DenoiserConfig:
        """The sizes of the model that has this curve."""
        points, width = self.table.shape
        return config.model_copy(
            update={"curve_points": points, "time_embed_dim": width, "freq_dim": 0, "time_embed_hidden_dim": 0}
        )


@torch.no_grad()
def fit_curve(embedder: TimeEmbedder, width: int) -> Curve:
    """Principal components of SiLU(embedder(t)) over t in [0, 1]. `embedder` is fp64, of output width D."""
    values = F.silu(embedder(torch.linspace(0, 1, CURVE_POINTS, dtype=torch.float64)))  # [P, D]
    mean = values.mean(0)
    _, _, directions = torch.linalg.svd(values - mean, full_matrices=False)
    basis = directions[: min(CURVE_WIDTH, width)]
    table = (values - mean) @ basis.T
    error = ((mean + table @ basis - values).norm() / values.norm()).item()
    log.info("pruned: a curve of width %d keeps the time embedding to %.1e", len(basis), error)
    return Curve(table.float(), basis.float(), mean.float(), error)


def _split(units: list[Unit], shard_bytes: int) -> list[list[Unit]]:
    """In order, into shards of at most so many bytes (a larger unit has one of its own)."""
    shards: list[list[Unit]] = [[]]
    size = 0
    for unit in units:
        if shards[-1] and size + unit.size_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(unit)
        size += unit.size_bytes
    return shards


def _is_other(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is there already and holds something else: name another, or delete it first")


def _describe(config: DenoiserConfig, to: Target) -> dict[str, object]:
    """config.json as programs for this layout read it."""
    sizes = config.model_dump(mode="json", exclude={"curve_points"})
    if to is Target.DIFFUSERS:
        return {"_class_name": "MiniMaxH3Transformer3DModel", **sizes}
    also = {name: sizes[ours] for name, ours in _OFFICIAL_NAMES.items()}
    return {"_class_name": "MiniMaxH3DiTModel", **sizes, **also}
