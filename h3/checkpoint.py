"""Loads the denoiser from any of its checkpoint families; what a file holds decides, never its name.

Everything is checked from the headers before a byte of a weight is read: each tensor is there, has the shape and
dtype that its place wants, and none is left over. Tensors then stream one by one to their device. The layers that a
file says are quantised stay packed or are widened, layer by layer, as the wanted precision has it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from h3.config import DenoiserConfig
from h3.errors import CheckpointError, ConfigError
from h3.families import QKV_ORDER, Family, QkvOrder, read_config, storage, swap_row_axes
from h3.fp8 import round_layer
from h3.markers import Marker, read_markers
from h3.model import MODEL_DTYPE, Denoiser, is_island, rotary_frequencies
from h3.nvfp4 import NVFP4Linear, PackedWeight, dequantise, packed_forms, swizzle, unswizzle
from h3.precision import Precision
from h3.qkv_order import confirm_qkv_order
from h3.tensor_file import StoredTensor, TensorForm, TensorReader, find_tensors, read_header
from h3.weights import Part, Recipe, check_recipes, fill, only, put

PREFIX = "model.diffusion_model."  # before every name, in some of ComfyUI's files
CURVE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)  # publishers differ; evaluated in fp32
_SCALE_DTYPES = (torch.float8_e4m3fn, torch.uint8)  # the same bytes
_NOT_NEEDED = ("comfy_quant", "input_scale")  # of a quantised layer: its marker is read before, the other computed

T = TypeVar("T")
# Makes a model on `meta` a rank's part, with recipes that give just that of each tensor.
Trim = Callable[[Denoiser, dict[str, Recipe]], dict[str, Recipe]]


def keep_all(_: Denoiser, recipes: dict[str, Recipe]) -> dict[str, Recipe]:
    """The whole model."""
    return recipes


@dataclass(frozen=True, slots=True)
class DenoiserFiles:
    """What the headers of a denoiser's files say. Names are without prefix."""

    path: Path
    family: Family
    order: QkvOrder
    config: DenoiserConfig
    stored: dict[str, StoredTensor]
    markers: dict[str, Marker]  # of the layers that are quantised

    @classmethod
    def open(cls, path: Path, order: QkvOrder | None = None) -> "DenoiserFiles":
        """Read headers, and config.json where `path` is a folder. `order` overrides what the family says of q, k and v.

        Raises CheckpointError.
        """
        if not path.exists():
            raise CheckpointError(f"{path} is missing: is this the path of an H3 checkpoint?")
        if path.is_dir():
            config = DenoiserConfig.from_file(path / "config.json")
            stored = find_tensors(path)
            family = (
                Family.DIFFUSERS if any(name.startswith("transformer_blocks.") for name in stored) else Family.OFFICIAL
            )
            return cls(path, family, order or QKV_ORDER[family], config, stored, read_markers(stored, {}))
        header = read_header(path)
        stored = _strip(path, header.tensors)
        markers = _strip(path, read_markers(header.tensors, header.metadata))
        return cls(path, Family.COMFY, order or QKV_ORDER[Family.COMFY], _read_config(path, stored), stored, markers)

    @property
    def precision(self) -> Precision:
        """What the block stack is stored in, other formats than NVFP4 being widened when they are loaded."""
        return Precision.NVFP4 if self._packed_layers() else Precision.BF16

    def check(self, precision: Precision | None = None) -> None:
        """Compare every tensor's name, shape and dtype with what the model wants. Raises CheckpointError."""
        self.plan(precision)

    def load(
        self,
        device: torch.device,
        precision: Precision | None = None,
        waits: Callable[[str], bool] = lambda _: False,
        trim: Trim = keep_all,
    ) -> Denoiser:
        """Build the model on the device, tensors that wait in host memory; `precision` None keeps what the files have.

        Of what `trim` leaves out, one tensor at a time is in memory.
        Raises CheckpointError naming file and tensor, ConfigError if the files do not have the precision.
        """
        model, recipes = self.plan(precision)
        with TensorReader(device) as reader:
            self.confirm_order(reader)
        recipes = trim(model, recipes)
        for place, chosen in ((device, False), (torch.device("cpu"), True)):
            some = {name: recipe for name, recipe in recipes.items() if waits(name) is chosen}
            fill(model, some, self.stored, place, partial(settle, model, precision))
        self._settle_frequencies(model, torch.device("cpu") if waits("rope.inv_freq") else device)
        return model.eval().requires_grad_(False)

    def confirm_order(self, reader: TensorReader) -> None:
        """Raises CheckpointError if the weights say that q, k and v lie in another order."""
        plain = "comfy-pruned" if self.config.is_pruned else "official"
        same = "comfy-nvfp4" if self.precision is Precision.NVFP4 else plain
        confirm_qkv_order(self.path, self.order, self.config, lambda layer: self.read_qkv(layer, reader), same)

    def plan(self, precision: Precision | None) -> tuple[Denoiser, dict[str, Recipe]]:
        """The model without memory, and how each of its tensors is made of stored ones."""
        precision = precision or self.precision
        if precision is Precision.NVFP4 and self.precision is not Precision.NVFP4:
            raise ConfigError(
                f"{self.path} holds {self.precision} weights, not nvfp4: "
                f"h3render checkpoint convert {self.path} FILE --to comfy-nvfp4"
            )
        packed = self._packed_layers() if precision is Precision.NVFP4 else {}
        model = skeleton(self.config, packed, precision)
        wanted = model.state_dict()
        recipes: dict[str, Recipe] = {}
        for name, tensor in wanted.items():
            if isinstance(model.get_submodule(name.rpartition(".")[0]), NVFP4Linear):
                recipes[name] = self._packed_recipe(name, tensor)
            elif recipe := self._plain_recipe(name, tensor, model.dtype):
                recipes[name] = recipe
        if unplaced := sorted(
            self.markers.keys() - {name.removesuffix(".weight") for name in wanted if name.endswith(".weight")}
        ):
            raise CheckpointError(f"{self.path} marks layer {unplaced[0]} as quantised, which H3 does not have")
        ignored = frozenset(f"{layer}.{leaf}" for layer in self.markers for leaf in _NOT_NEEDED)
        check_recipes(recipes, self.stored, self.path, ignored)
        return model, recipes

    def _packed_layers(self) -> dict[str, Marker]:
        return {layer: marker for layer, marker in self.markers.items() if marker.format == "nvfp4"}

    def read_qkv(self, layer: str, reader: TensorReader) -> Tensor:
        """The weight of an attention's projection [3 x H x D, C] in the model's order, whatever it is stored in."""
        wanted = torch.empty(3 * self.config.attention_dim, self.config.hidden_size, device="meta")
        recipe = self._plain_recipe(f"{layer}.weight", wanted, MODEL_DTYPE)
        assert recipe is not None, layer
        return recipe.read(self.stored, reader)

    def _plain_recipe(self, name: str, wanted: Tensor, dtype: torch.dtype) -> Recipe | None:
        """Of a tensor that is not quantised in the model; None if this family leaves it out."""
        layer, _, leaf = name.rpartition(".")
        if layer in self.markers and leaf == "weight":
            return self._widened(layer, wanted, dtype)
        kept = storage(self.order, name, tuple(wanted.shape), self.config)
        if kept is None:
            return None
        dtypes = stored_dtypes(name, self.config)
        return Recipe(tuple(Part(part, shape, dtypes) for part, shape in kept.parts.items()), kept.load)

    def _packed_recipe(self, name: str, wanted: Tensor) -> Recipe:
        part, heads = _packed_part(name, wanted), self.config.num_attention_heads
        is_swapped = self.order is QkvOrder.INTERLEAVED and "qkv_proj" in name
        if name.endswith(".weight_scale"):
            return Recipe((part,), partial(_swap_scales, config=self.config) if is_swapped else _view_scales)
        if name.endswith(".weight") and is_swapped:
            return Recipe((part,), lambda found: swap_row_axes(only(found), heads, 3))
        return Recipe((part,))

    def _widened(self, layer: str, wanted: Tensor, dtype: torch.dtype) -> Recipe:
        """A quantised layer as one plain weight."""
        if wanted.ndim != 2 or is_island(f"{layer}.weight", self.config):
            raise CheckpointError(
                f"{self.path}: {layer} is stored as {self.markers[layer].format}, expected a plain weight"
            )
        rows, columns = wanted.shape
        weight, scale = f"{layer}.weight", f"{layer}.weight_scale"
        match self.markers[layer].format:
            case "nvfp4":
                parts = [_packed_part(f"{layer}.{leaf}", form) for leaf, form in packed_forms(rows, columns).items()]
                return self._in_order(weight, wanted, parts, lambda found: _dequantise(found, dtype))
            case "float8_e4m3fn":
                parts = [Part(weight, (rows, columns), (torch.float8_e4m3fn,)), Part(scale, (), (torch.float32,))]
            case "int8_tensorwise" if not self.markers[layer].fields.get("convrot"):
                parts = [Part(weight, (rows, columns), (torch.int8,)), Part(scale, (rows, 1), (torch.float32,))]
            case other:
                raise CheckpointError(
                    f"{self.path}: {layer} is stored as {other} {self.markers[layer].fields}, which is not supported; "
                    "take a file with nvfp4, float8_e4m3fn, int8_tensorwise (without convrot) or bf16 layers"
                )
        return self._in_order(weight, wanted, parts, lambda found: (found[0].float() * found[1]).to(dtype))

    def _in_order(
        self, name: str, wanted: Tensor, parts: list[Part], widen: Callable[[list[Tensor]], Tensor]
    ) -> Recipe:
        """Widen the parts, then bring the rows into the model's order."""
        kept = storage(self.order, name, tuple(wanted.shape), self.config)
        assert kept is not None
        return Recipe(tuple(parts), lambda found: kept.load([widen(found)]))

    def _settle_frequencies(self, model: Denoiser, device: torch.device) -> None:
        expected = rotary_frequencies(self.config)
        if model.rope.inv_freq.is_meta:
            put(model, "rope.inv_freq", expected.to(device))
        # Not to the bit: another processor may round the last one otherwise.
        elif not torch.allclose(model.rope.inv_freq.cpu(), expected, rtol=1e-6, atol=0):
            raise CheckpointError(
                f"{self.path}: rope.inv_freq is {model.rope.inv_freq.tolist()}, expected {expected.tolist()}"
            )


def load_denoiser(path: Path, device: torch.device, precision: Precision | None = None) -> Denoiser:
    """Build the denoiser from a folder or file of any family. Raises CheckpointError, ConfigError."""
    return DenoiserFiles.open(path).load(device, precision)


def settle(model: Denoiser, precision: Precision | None, name: str) -> None:
    """Round a layer's weight as soon as it has its values: all of them in 16 bits may be more than there is memory."""
    if precision is Precision.FP8 and name.startswith("blocks."):
        round_layer(model, name)


def skeleton(config: DenoiserConfig, packed: Mapping[str, Marker], precision: Precision = Precision.BF16) -> Denoiser:
    """A denoiser on `meta`, with the named layers packed as NVFP4."""
    with torch.device("meta"):
        model = Denoiser(config, torch.float32 if precision is Precision.FP32 else MODEL_DTYPE)
        for layer, marker in packed.items():
            _replace_linear(model, layer, marker)
    return model


def _replace_linear(model: Denoiser, layer: str, marker: Marker) -> None:
    owner, _, leaf = layer.rpartition(".")
    try:
        parent, linear = model.get_submodule(owner), model.get_submodule(layer)
    except AttributeError:
        return  # told where the markers are compared with the model
    if isinstance(linear, nn.Linear) and linear.bias is None:
        packed = NVFP4Linear(linear.in_features, linear.out_features, full_precision=marker.full_precision)
        setattr(parent, leaf, packed)


def stored_dtypes(name: str, config: DenoiserConfig) -> tuple[torch.dtype, ...]:
    """What a tensor that is not quantised may be stored in."""
    if config.is_pruned and ".adaln_proj." in name:
        return CURVE_DTYPES
    return (torch.float32,) if is_island(name, config) or name == "rope.inv_freq" else (torch.bfloat16,)


def _packed_part(name: str, wanted: Tensor | TensorForm) -> Part:
    """One of the tensors that hold a packed layer."""
    return Part(name, tuple(wanted.shape), _SCALE_DTYPES if name.endswith(".weight_scale") else (wanted.dtype,))


def _swap_scales(parts: list[Tensor], config: DenoiserConfig) -> Tensor:
    """Block scales of rows [H, 3, D] to those of [3, H, D]."""
    tiled = only(parts).view(torch.uint8)
    scales = unswizzle(tiled, 3 * config.attention_dim, tiled.shape[1])
    return swizzle(swap_row_axes(scales, config.num_attention_heads, 3)).view(torch.float8_e4m3fn)


def _view_scales(parts: list[Tensor]) -> Tensor:
    """Block scales are e4m3, also where a file calls them bytes."""
    return only(parts).view(torch.float8_e4m3fn)


def _dequantise(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    codes, scales, scale = parts
    return dequantise(PackedWeight(codes, scales.view(torch.float8_e4m3fn), scale), dtype)


def _strip(path: Path, entries: Mapping[str, T]) -> dict[str, T]:
    """Names as the model has them. Raises CheckpointError if two become one."""
    stripped = {name.removeprefix(PREFIX): entry for name, entry in entries.items()}
    if len(stripped) < len(entries):
        name = next(name for name in entries if name.startswith(PREFIX) and name.removeprefix(PREFIX) in entries)
        raise CheckpointError(f"{path} holds {name}, and the same without {PREFIX}")
    return stripped


def _read_config(path: Path, stored: Mapping[str, StoredTensor]) -> DenoiserConfig:
    forms: dict[str, TensorForm] = {name: tensor.form for name, tensor in stored.items()}
    try:
        return read_config(forms)
    except KeyError as exc:
        raise CheckpointError(f"{path} lacks tensor {exc.args[0]}: is this a denoiser of H3?") from exc
    except (ValueError, IndexError, ZeroDivisionError, ValidationError, ConfigError) as exc:
        raise CheckpointError(f"{path}: the shapes of its tensors do not fit together ({exc})") from exc
