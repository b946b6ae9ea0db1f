"""The file that lets a render be taken up again after a step: latents and where they stand.

safetensors, with two fp32 tensors (`video` [V, patch_dim], `audio` [2A, channels]) and, as metadata, the step and
everything that the bits depend on, so that a reader can refuse what it must not continue.
"""

import json
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file

from h3.provenance import Provenance
from h3.sampler import Latents

VERSION = "1"


def save_progress(path: Path, latents: Latents, step: int, steps: int, request_json: str, origin: Provenance) -> None:
    """Write the latents after `step` of `steps`, atomically."""
    metadata = {
        "version": VERSION,
        "step": str(step),
        "steps": str(steps),
        "request": request_json,
        "provenance": json.dumps(asdict(origin)),
    }
    partial = path.with_suffix(".partial")
    tensors = {"video": latents.video.cpu().contiguous(), "audio": latents.audio.cpu().contiguous()}
    save_file(tensors, partial, metadata=metadata)
    partial.rename(path)
