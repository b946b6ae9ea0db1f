"""What a render is conditioned on, made once before the first step: text states and keyframes. Can be kept in a file.

The file is safetensors: `states` [L, text_dim], and with keyframes `keyframes` [n, C, 1, Hl, Wl] fp32, their anchors
and the rows of their vision blocks in the metadata.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from h3.denoise import Denoising
from h3.errors import CheckpointError, ConfigError
from h3.keyframes import open_picture, prepare
from h3.model import Denoiser
from h3.sampler import Noise, Schedule, noise_keyframes
from h3.sequence import Anchor, Geometry, Layout
from h3.tensor_file import StoredTensor, TensorReader, read_header, write_tensors

if TYPE_CHECKING:
    from h3.text import TextEncoder
    from h3.vae import VideoEncoder

STATES_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Conditioning:
    """Of one request."""

    states: Tensor  # [L, text_dim]
    vision: tuple[range, ...] = ()  # rows of the states that are a keyframe's vision block
    anchors: tuple[Anchor, ...] = ()
    keyframes: tuple[Tensor, ...] = ()  # clean latents, each [C, 1, Hl, Wl] fp32 on the CPU

    def layout(self, geometry: Geometry) -> Layout:
        """The sequence of a render of that size. Raises ConfigError if the keyframes are of another."""
        size = (geometry.latent_height, geometry.latent_width)
        if other := {tuple(keyframe.shape[2:]) for keyframe in self.keyframes} - {size}:
            raise ConfigError(f"a keyframe has {list(other.pop())} latents, the video {list(size)}: encode it anew")
        return Layout(geometry, len(self.states), self.vision, self.anchors)

    def keyframe_rows(self, noise: Noise) -> Tensor | None:
        """As the model sees them at every step: [rows, patch_dim] fp32; None without keyframes."""
        return noise_keyframes(self.keyframes, noise.keyframes) if self.keyframes else None

    def begin(
        self, denoiser: Denoiser, geometry: Geometry, schedule: Schedule, noise: Noise, device: torch.device
    ) -> Denoising:
        """The render of that size, ready for its steps. Raises ConfigError if the keyframes are of another size."""
        layout, keyframes = self.layout(geometry), self.keyframe_rows(noise)
        return Denoising.begin(denoiser, self.states.to(device), layout, schedule, keyframes)

    def save(self, path: Path) -> None:
        """Write the file, atomically."""
        tensors = {"states": self.states.cpu()}
        if self.keyframes:
            tensors["keyframes"] = torch.stack(self.keyframes)
        blocks = [[block.start, block.stop] for block in self.vision]
        write_tensors(path, tensors, {"vision": json.dumps(blocks), "anchors": json.dumps(self.anchors)})


def load_conditioning(path: Path) -> Conditioning:
    """Read such a file, or one with `states` alone. Raises CheckpointError saying what is not as `save` writes it."""
    header = read_header(path)
    vision, anchors = _read_places(path, header.metadata)
    _check_forms(path, header.tensors, len(anchors))
    with TensorReader(torch.device("cpu")) as reader:
        states = reader.read(header.tensors["states"])
        keyframes = tuple(reader.read(header.tensors["keyframes"])) if anchors else ()
    return Conditioning(states, vision, anchors, keyframes)


def _read_places(path: Path, metadata: Mapping[str, str]) -> tuple[tuple[range, ...], tuple[Anchor, ...]]:
    """Rows of the vision blocks, and anchors, one of each for a keyframe."""
    try:
        blocks = [(start, stop) for start, stop in json.loads(metadata.get("vision", "[]"))]
        vision = tuple(range(start, stop) for start, stop in blocks)
        anchors = tuple(Anchor(anchor) for anchor in json.loads(metadata.get("anchors", "[]")))
    except (ValueError, TypeError, RecursionError) as exc:
        raise CheckpointError(f"{path} has metadata that h3render did not write ({exc}): encode it anew") from exc
    if anchors != tuple(anchor for anchor in Anchor if anchor in anchors):
        raise CheckpointError(f"{path} has the anchors {', '.join(anchors)}, expected each once and the first before")
    if len(vision) != len(anchors):
        raise CheckpointError(f"{path} has {len(anchors)} anchors and {len(vision)} vision blocks: encode it anew")
    return vision, anchors


def _check_forms(path: Path, tensors: Mapping[str, StoredTensor], keyframes: int) -> None:
    """Shapes as far as they depend on neither model nor video."""
    if "states" not in tensors:
        raise CheckpointError(f"{path} lacks tensor states: h3render encode-text writes such a file")
    states = tensors["states"].form
    if len(states.shape) != 2 or not states.shape[0] or states.dtype not in STATES_DTYPES:
        raise CheckpointError(f"{path}: states is {states}, expected [tokens, text_dim] bfloat16, float16 or float32")
    if ("keyframes" in tensors) != (keyframes > 0):
        has = f"{keyframes} anchors without keyframes" if keyframes else "keyframes without anchors"
        raise CheckpointError(f"{path} has {has}: encode it anew")
    if keyframes:
        found = tensors["keyframes"].form
        is_picture = len(found.shape) == 5 and (found.shape[0], found.shape[2]) == (keyframes, 1)
        if not is_picture or found.dtype != torch.float32:
            expected = f"[{keyframes}, channels, 1, height, width] float32"
            raise CheckpointError(f"{path}: keyframes is {found}, expected {expected}")


def encode(
    prompt: str,
    pictures: Mapping[Anchor, Path],
    geometry: Geometry | None,
    text: "TextEncoder",
    video: "VideoEncoder | None",
) -> Conditioning:
    """Encode a prompt, and its keyframes at the video's size. Raises ConfigError for a picture that cannot be used."""
    anchors = tuple(anchor for anchor in Anchor if anchor in pictures)  # the first before the last
    if not anchors:
        return Conditioning(text.encode(text.present(prompt)).cpu())
    assert geometry is not None
    assert video is not None
    prepared = [
        prepare(open_picture(pictures[anchor]), geometry.width, geometry.height, cover=number > 0)
        for number, anchor in enumerate(anchors)
    ]
    presentation = text.present(prompt, prepared)
    keyframes = tuple(video.encode(picture) for picture in prepared)
    return Conditioning(text.encode(presentation).cpu(), presentation.vision, anchors, keyframes)
