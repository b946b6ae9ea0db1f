"""A denoiser whose weights come from a seed, for machines without a checkpoint: speed, memory and agreement are real.

Each tensor is drawn by its own name, so a rank draws just its part of a model that no memory could hold, and any two
ranks hold parts of the same one. Freshly initialised, H3's velocity is tiny against its noise and its attention nearly
uniform, so a wrong head order or a missing row would pass any gate; these weights are scaled so that each part of the
model moves the result. Another type of device draws other values.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from h3.checkpoint import Trim, keep_all, settle, skeleton
from h3.config import DenoiserConfig
from h3.markers import Marker
from h3.model import Denoiser, rotary_frequencies
from h3.nvfp4 import NVFP4Linear, PackedWeight, quantise
from h3.precision import Precision
from h3.weights import Recipe, put

NORM_SPREAD = 0.2
QK_SCALE = 1.25  # of q and k after their norm: logits with a standard deviation of about 1.6
MODULATION = 0.75  # over the root of the number of blocks, so that roundings add up to as much in any depth
ATTENDED = 4.0  # of attention's output, which is small where it is an average of many rows
BIAS = 0.1
_PACKED = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")  # of each block, where the precision is NVFP4

# The published model's sizes.
H3 = DenoiserConfig(
    hidden_size=5376,
    num_layers=50,
    num_refiner_layers=2,
    num_attention_heads=56,
    attention_head_dim=128,
    ffn_dim=14336,
    in_channels=24,
    audio_in_channels=32,
    text_dim=5120,
    freq_dim=256,
    time_embed_hidden_dim=5376,
    time_embed_dim=2688,
)
# Of toy size, as h3/tiny.py writes it: here, for what that imports takes seconds.
TINY = DenoiserConfig(
    hidden_size=192,
    num_layers=4,
    num_refiner_layers=1,
    num_attention_heads=9,  # more than 8 and odd: ragged over 2 ranks, and divisible over up to 8
    attention_head_dim=128,
    ffn_dim=1152,
    in_channels=24,
    audio_in_channels=32,
    patch_size=(1, 2, 2),
    text_dim=64,
    freq_dim=64,
    time_embed_hidden_dim=96,
    time_embed_dim=48,
    rope_freq_dim=16,
    rope_theta=10_000.0,
    norm_eps=1e-5,
    qk_norm_eps=1e-5,
    final_norm_eps=1e-5,
)
_CURVE = {"curve_points": 1025, "time_embed_dim": 8, "freq_dim": 0, "time_embed_hidden_dim": 0}


def with_curve(config: DenoiserConfig) -> DenoiserConfig:
    """The same model, pruned: its AdaLN reads a short curve over time."""
    return config.model_copy(update=_CURVE)


@dataclass(frozen=True, slots=True)
class Untrained:
    """Stands where files of a denoiser stand."""

    config: DenoiserConfig
    seed: int = 0
    precision: Precision = Precision.BF16

    def __str__(self) -> str:
        return f"random weights of {self.config.num_layers} blocks (seed {self.seed})"

    @property
    def digest(self) -> str:
        """Of all that the weights depend on, the type of device aside."""
        scales = (NORM_SPREAD, QK_SCALE, MODULATION, ATTENDED, BIAS)
        return hashlib.sha256(f"untrained {self.seed} {scales} {self.config.model_dump_json()}".encode()).hexdigest()

    def load(
        self,
        device: torch.device,
        precision: Precision | None = None,
        waits: Callable[[str], bool] = lambda _: False,
        trim: Trim = keep_all,
    ) -> Denoiser:
        """As DenoiserFiles.load. The values are those that bf16 (and, for a curve's AdaLN, fp16) can hold."""
        precision = precision or self.precision
        packed = self._packed_layers() if precision is Precision.NVFP4 else {}
        model = skeleton(self.config, packed, precision)
        recipes = trim(model, self._recipes(model, device))
        for name, recipe in recipes.items():
            put(model, name, recipe.build([]).to("cpu" if waits(name) else device))
            settle(model, precision, name)
        return model.eval().requires_grad_(False)

    def draw(self, device: torch.device) -> Callable[[str], Tensor]:
        """Gives any tensor of the model by its name, none of them packed."""
        recipes = self._recipes(skeleton(self.config, {}), device)
        return lambda name: recipes[name].build([])

    def _packed_layers(self) -> dict[str, Marker]:
        layers = [f"blocks.{number}.{layer}" for number in range(self.config.num_layers) for layer in _PACKED]
        return {layer: Marker("nvfp4", full_precision=False, fields={}) for layer in layers}

    def _recipes(self, model: Denoiser, device: torch.device) -> dict[str, Recipe]:
        @lru_cache(maxsize=1)  # its tensors follow each other
        def pack(layer: str, shape: tuple[int, int]) -> PackedWeight:
            return quantise(self._draw(f"{layer}.weight", shape, device))

        recipes: dict[str, Recipe] = {}
        for name, tensor in model.state_dict().items():
            layer, _, leaf = name.rpartition(".")
            linear = model.get_submodule(layer)
            if isinstance(linear, NVFP4Linear):
                shape = (linear.out_features, linear.in_features)
                recipes[name] = Recipe((), partial(_part_of, pack, layer, shape, leaf))
            else:
                recipes[name] = Recipe((), partial(self._plain, name, tuple(tensor.shape), device))
        return recipes

    def _plain(self, name: str, shape: tuple[int, ...], device: torch.device, _: list[Tensor]) -> Tensor:
        if name == "rope.inv_freq":
            return rotary_frequencies(self.config)
        if name == "adaln_t_table":
            return _curve(*shape)
        return self._draw(name, shape, device)

    def _draw(self, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        seed = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(seed[:7], "little"))
        values = torch.randn(shape, generator=generator, device=device)
        return self._scaled(name, values).half().bfloat16()

    def _scaled(self, name: str, values: Tensor) -> Tensor:
        modulation = MODULATION / self.config.num_layers**0.5
        if "norm" in name:
            return values.mul_(NORM_SPREAD).add_(1).mul_(QK_SCALE if ".q_norm" in name or ".k_norm" in name else 1)
        if name.endswith("bias"):
            return values.mul_(modulation if "adaln" in name else BIAS)
        scale = modulation if "adaln_proj" in name else ATTENDED if "out_proj" in name else 1
        return values.mul_(scale / values.shape[1] ** 0.5)


def _part_of(
    pack: Callable[[str, tuple[int, int]], PackedWeight], layer: str, shape: tuple[int, int], leaf: str, _: list[Tensor]
) -> Tensor:
    packed = pack(layer, shape)
    return {"weight": packed.codes, "weight_scale": packed.scales, "weight_scale_2": packed.scale}[leaf]


def _curve(points: int, width: int) -> Tensor:
    """Smooth over time, and another one in each channel."""
    time, rates = torch.linspace(0, 1, points)[:, None], torch.arange(1, width + 1)
    return torch.cos(time * rates * 1.7 + rates)
