"""Writes checkpoints of the published sizes with random weights, once, and keeps them: for machines without a real one.

The text encoder alone is not of its size: as wide as the published one, but of TEXT_LAYERS layers, and its tokenizer
knows single bytes.
"""

import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from h3.bench.model import choose_model
from h3.bench.turns import Tell
from h3.config import DenoiserConfig
from h3.convert import Target, save_untrained
from h3.errors import ConfigError
from h3.model import MODEL_DTYPE
from h3.model_folder import ModelFolder
from h3.precision import Precision
from h3.sequence import AUDIO_RATE_HZ
from h3.tensor_file import TensorForm, TensorWriter
from h3.text_files import LAYER_KEY, PUBLISHED_CONFIG, TextSizes, text_shapes
from h3.untrained import H3, Untrained, with_curve
from h3.vae_config import AudioVaeConfig, OfficialSource, OfficialWrapper, VideoVaeConfig
from h3.vae_files import is_kept_in_fp32
from h3.vae_shapes import audio_shapes, video_shapes

Fields = dict[str, object]
Shapes = Mapping[str, tuple[int, ...]]

TEXT_LAYERS = 2
_TARGETS = {Precision.NVFP4: Target.COMFY_NVFP4, Precision.BF16: Target.COMFY_PRUNED}
_CHANNELS, _SOUND_CHANNELS = H3.in_channels, H3.audio_in_channels


def published_video() -> VideoVaeConfig:
    wrapper = OfficialWrapper(
        source_path="source",
        source_safetensors_path="model.safetensors",
        vae_clip_length=17,
        vae_token_drop=3,
        vae_tile_size=256,
        vae_tile_overlap_min=64,
        latents_mean=(0.0,) * _CHANNELS,
        latents_std=(1.0,) * _CHANNELS,
    )
    return VideoVaeConfig.model_validate(OfficialSource().arguments(wrapper))


def published_audio() -> AudioVaeConfig:
    return AudioVaeConfig(
        encoder_dim=64,
        encoder_rates=(2, 4, 4, 5, 5),
        latent_dim=2048,
        latent_channels=_SOUND_CHANNELS,
        decoder_dim=1024,
        decoder_rates=(5, 5, 2, 2, 2, 2, 2),
        decoder_kernel_sizes=(9, 9, 4, 4, 4, 4, 4),
        sampling_rate=AUDIO_RATE_HZ,
        latents_mean=(0.0,) * _SOUND_CHANNELS,
        latents_std=(1.0,) * _SOUND_CHANNELS,
    )


def shallow_text() -> Fields:
    """config.json of a text encoder of the published width, with few layers and the tiny tokenizer's words."""
    from h3.tiny import SPECIAL_TOKENS, special_id  # diffusers and transformers come with it

    text, vision = (dict[str, object](PUBLISHED_CONFIG[part]) for part in ("text_config", "vision_config"))  # type: ignore[call-overload]  # JSON
    text |= {"num_hidden_layers": TEXT_LAYERS, "vocab_size": 256 + len(SPECIAL_TOKENS)}
    vision |= {"depth": 1, "deepstack_visual_indexes": [0]}
    marks = {"vision_start": "vision_start", "vision_end": "vision_end", "image": "image_pad", "video": "video_pad"}
    ids = {f"{mark}_token_id": special_id(f"<|{token}|>") for mark, token in marks.items()}
    return PUBLISHED_CONFIG | ids | {"text_config": text, "vision_config": vision, LAYER_KEY: TEXT_LAYERS}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of all parts; the published ones, but for the text encoder."""

    denoiser: DenoiserConfig = field(default_factory=lambda: with_curve(H3))
    text: Fields = field(default_factory=shallow_text)
    video: VideoVaeConfig = field(default_factory=published_video)
    audio: AudioVaeConfig = field(default_factory=published_audio)


def choose_files(
    path: Path | None,
    folder: Path,
    device: torch.device,
    tell: Tell,
    *,
    tiny: bool,
    layers: int | None,
    precision: Precision | None,
) -> Path:
    """The files that are named, else a denoiser's that are written. Raises ConfigError and what `write_denoiser` does.

    precision  that they will be loaded in
    """
    if path is not None:
        if tiny or layers:
            raise ConfigError("--model has its own sizes: leave --tiny and --layers out")
        return path
    _, config = choose_model(None, tiny=tiny, layers=layers)
    kept = choose_stored(precision)
    return write_denoiser(name_root(folder, config, kept), config, kept, device, tell)


def choose_root(
    path: Path | None,
    folder: Path,
    device: torch.device,
    tell: Tell,
    *,
    tiny: bool,
    layers: int | None,
    precision: Precision | None,
) -> Path:
    """The checkpoint that is named, else one that is written. Raises ConfigError and what `write_denoiser` does.

    precision  that it will be loaded in
    """
    if path is not None or tiny:
        if (path and tiny) or layers:
            which = "--model" if path else "--tiny"
            raise ConfigError(f"{which} has its own sizes: leave the flags for random weights out")
        return path or _write_tiny(folder / "tiny", tell)
    _, config = choose_model(None, tiny=False, layers=layers)
    kept = choose_stored(precision)
    root = name_root(folder, config, kept)
    write_model(root, Sizes(config), kept, device, tell)
    return root


def _write_tiny(root: Path, tell: Tell) -> Path:
    from h3.tiny import write_tiny

    if not root.exists():
        tell(f"writing {root}, once")
        _write_whole(root, lambda path: write_tiny(path, seed=0))
    return root


def choose_stored(precision: Precision | None) -> Precision:
    """What random weights are written in, to be loaded in this: in NVFP4 if in nothing that needs more."""
    return Precision.NVFP4 if precision in (None, Precision.NVFP4) else Precision.BF16


def name_root(folder: Path, config: DenoiserConfig, precision: Precision) -> Path:
    """Where the checkpoint with such a denoiser lies."""
    return folder / f"untrained-{precision}-{config.num_layers}x{config.hidden_size}"


def write_denoiser(root: Path, config: DenoiserConfig, precision: Precision, device: torch.device, tell: Tell) -> Path:
    """The denoiser's file of that checkpoint, written if it is not there.

    Raises CheckpointError if it has other weights, as those that are drawn on another type of device.
    """
    partition = ModelFolder.below(root).transformer.parent
    path = partition / "transformer.safetensors"
    if not path.exists():
        tell(f"writing {path}, once")
    save_untrained(Untrained(config), path, _TARGETS[precision], device)
    _let_go(device)
    return path


def write_model(root: Path, sizes: Sizes, precision: Precision, device: torch.device, tell: Tell) -> None:
    """All parts; those that are there are kept. Raises what `write_denoiser` does."""
    from h3.tiny import write_tokenizer

    write_denoiser(root, sizes.denoiser, precision, device, tell)
    folder = ModelFolder.below(root)
    text, video, audio = (
        text_shapes(TextSizes.model_validate(sizes.text)),
        video_shapes(sizes.video),
        audio_shapes(sizes.audio),
    )
    parts: dict[Path, Callable[[Path], None]] = {
        folder.tokenizer: write_tokenizer,
        folder.text_encoder: lambda path: _write_part(path, sizes.text, _forms(text, lambda _: MODEL_DTYPE), device),
        folder.video_vae: lambda path: _write_part(
            path,
            sizes.video.model_dump(mode="json"),
            _forms(video, lambda name: torch.float32 if is_kept_in_fp32(name) else MODEL_DTYPE),
            device,
        ),
        folder.audio_vae: lambda path: _write_part(
            path, sizes.audio.model_dump(mode="json"), _forms(audio, lambda _: torch.float32), device
        ),
    }
    for path, write in parts.items():
        if not path.exists():
            tell(f"writing {path}, once")
            _write_whole(path, write)
    _let_go(device)


def _let_go(device: torch.device) -> None:
    """Of the memory that torch keeps: ranks are about to need it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _write_whole(folder: Path, write: Callable[[Path], object]) -> None:
    """The folder has its name only when all of it is there."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    partial.rename(folder)


def _write_part(folder: Path, config: Fields, forms: dict[str, TensorForm], device: torch.device) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    with TensorWriter(folder / "model.safetensors", forms, {}, resume=False) as writer:
        for name in writer.remaining:
            writer.write(draw(name, forms[name].shape, device).to(forms[name].dtype))
        writer.finish()


def _forms(shapes: Shapes, dtype_of: Callable[[str], torch.dtype]) -> dict[str, TensorForm]:
    return {name: TensorForm(dtype_of(name), shape) for name, shape in shapes.items()}


def draw(name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """fp32 values that keep what flows through a deep network at about 1, whatever the tensor is there."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=generator, device=device)
    owner, _, leaf = name.rpartition(".")
    if leaf == "filter":  # of a low pass
        return values.mul_(0.01).add_(1 / shape[-1])
    if leaf in ("scale1", "scale2"):  # of a residual branch
        return values.mul_(0.02).add_(0.2)
    if leaf in ("alpha", "beta", "weight_g") or (leaf == "weight" and "norm" in owner.rpartition(".")[2]):
        return values.mul_(0.1).add_(1)
    if leaf.endswith("bias"):
        return values.mul_(0.02)
    return values.mul_((shape[0] / values.numel()) ** 0.5)
