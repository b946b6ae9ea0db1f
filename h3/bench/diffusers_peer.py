"""Diffusers' H3 transformer as a contender: random weights of the same sizes, the same rows, its own kernels.

Its AdaLN projections are replaced by constants, for ours are evaluated before the first step, and neither is timed.
Ways of computing a step are its attention backends, each as it is and compiled block by block, as its authors advise.
"""

import logging
import warnings
from collections.abc import Iterator
from typing import Any, cast

import torch
from diffusers import ContextParallelConfig, MiniMaxH3Transformer3DModel
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep
from torch import Tensor, nn

from h3.bench.timed_steps import time_steps
from h3.bench.turns import TEXT_TOKENS, TakeSteps, Turn
from h3.config import MODALITIES, DenoiserConfig
from h3.model import MODEL_DTYPE, rotary_frequencies
from h3.sequence import Geometry
from worker.mgpu import MGPURunner, RunnerError

# Its names for what runs without further packages, and for FlashAttention 3 and SageAttention where these are.
BACKENDS = ("native", "_native_cudnn", "_native_flash", "_native_efficient", "_flash_3", "sage")
COMPILED = " compiled"  # at the end of a way's name
_FP32 = ("proj_in.", "audio_proj_in.", "time_embedder.", "proj_out.", "audio_proj_out.")
_TIMESTEPS = (0.9, 0.7)  # of video and text, and of audio

log = logging.getLogger(__name__)


class DiffusersSteps(MGPURunner):
    """Takes steps in the way that is asked for. RunnerError if that does not run here."""

    @torch.inference_mode()
    def setup(self, *, config: DenoiserConfig) -> None:
        self._config = config
        self._model = build(config, self.device)
        self._is_compiled = False
        if self.world_size > 1:
            self._model.enable_parallelism(
                config=ContextParallelConfig(ulysses_degree=self.world_size, ulysses_anything=True)
            )

    @torch.inference_mode()
    def __call__(self, *, ask: TakeSteps) -> Iterator[Turn]:
        try:
            turn = self._take(ask, ask.way.removesuffix(COMPILED), compiles=ask.way.endswith(COMPILED))
        except Exception as exc:  # a backend, or a compiler, says "not here" by many types
            raise RunnerError(f"{type(exc).__name__}: {str(exc).partition(chr(10))[0]}") from exc
        if self.rank == 0:
            yield turn

    def _take(self, ask: TakeSteps, backend: str, *, compiles: bool) -> Turn:
        self._model.set_attention_backend(backend)
        if compiles and not self._is_compiled:
            self._model.compile_repeated_blocks(dynamic=False)
            self._is_compiled = True
        inputs = make_inputs(self._config, ask.geometry, self.device)
        # What was compiled once runs as it is written where that is forced.
        with warnings.catch_warnings(), torch.compiler.set_stance("default" if compiles else "force_eager"):
            warnings.simplefilter("ignore")
            timed = time_steps(lambda: self._model(**inputs), ask.steps, self.device)
        weights = sum(parameter.nbytes for parameter in self._model.parameters())
        return Turn(timed.step_s, timed.peak_bytes, weights, ask.way, "bf16")


def build(config: DenoiserConfig, device: torch.device) -> Any:
    """The model with random weights, made on the device."""
    sizes = {name: getattr(config, name) for name in type(config).model_fields if name != "curve_points"}
    if config.is_pruned:  # its time embedding is smaller, and runs once a step
        sizes |= {"freq_dim": 256, "time_embed_hidden_dim": config.hidden_size}
    with torch.device("meta"):
        model = cast(nn.Module, MiniMaxH3Transformer3DModel(**sizes))
        for block in model.get_submodule("transformer_blocks").children():
            block.adaln_proj = _Constant(config)
    for name, parameter in list(model.named_parameters()):
        dtype = torch.float32 if name.startswith(_FP32) else MODEL_DTYPE
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(parameter.to(dtype), requires_grad=False))
    model.to_empty(device=device)
    model.get_submodule("rope").inv_freq = rotary_frequencies(config).to(device)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in model.named_parameters():
        _draw(name, parameter, generator)
    return model.eval()


def _draw(name: str, parameter: Tensor, generator: torch.Generator) -> None:
    if parameter.dim() > 1:
        parameter.normal_(0, 0.5 / parameter.shape[-1] ** 0.5, generator=generator)
    else:
        parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)


class _Constant(nn.Module):
    """Stands where a block's AdaLN projection stood: shift, scale and gate of attention and of the MLP."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        lines = len(_TIMESTEPS) * MODALITIES
        self.vectors = nn.ParameterList(torch.empty(lines, config.hidden_size) for _ in range(6))

    def forward(self, _: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.vectors)


def make_inputs(config: DenoiserConfig, geometry: Geometry, device: torch.device) -> dict[str, Any]:
    """Of a step: the rows in the order that diffusers' own pipeline gives them."""
    positions, tags, video, audio, text, _, _ = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        torch.ones(TEXT_TOKENS, dtype=torch.long),
        geometry.latent_frames,
        geometry.latent_height,
        geometry.latent_width,
        geometry.audio_latents,
        config.patch_size,
        2,
        2,
        0,
        (),
    )
    generator = torch.Generator().manual_seed(0)

    def draw(rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(1, rows, width, generator=generator).to(device, dtype)

    return {
        "hidden_states": draw(len(video), config.patch_dim),
        "audio_hidden_states": draw(len(audio), config.audio_in_channels),
        "encoder_hidden_states": draw(len(text), config.text_dim, MODEL_DTYPE),
        "timestep": torch.tensor(_TIMESTEPS, device=device),
        "timestep_indices": (tags == 2).long().to(device),
        "token_tags": tags.to(device),
        "position_ids": positions.to(device),
        "video_indices": video.to(device),
        "audio_indices": audio.to(device),
        "text_indices": text.to(device),
        "return_dict": False,
    }
