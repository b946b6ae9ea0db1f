"""What a render's bits depend on, as its checkpoints and its report record it."""

import hashlib
import platform
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Provenance:
    """Two renders of one request are bit-identical if all of this is equal."""

    model_digest: str
    precision: str
    mode: str
    world_size: int
    attention_backend: str
    torch: str
    device: str
    text_device: str = "file"  # type of the device that the text was encoded on
    pointwise: str = "eager"  # how what is between the products is computed: so, or fused


def describe_device(device: torch.device) -> str:
    """The GPU's name, or the processor's architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {platform.machine()}"


def sha256(tensor: Tensor) -> str:
    """Hash of a tensor's values in row order."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
