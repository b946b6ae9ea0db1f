"""The file that lets a render be taken up again after a step: latents and where they stand.

safetensors, with two fp32 tensors (`video` [V, patch_dim], `audio` [2A, channels]) and, as metadata, the step and
everything that the bits depend on, so that a reader can refuse what it must not continue.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from h3.errors import ResumeRefused
from h3.provenance import Provenance
from h3.sampler import Latents

VERSION = "2"
# With another one of these a render goes on within its tolerance; with another of the rest it would be another render.
MAY_DIFFER = ("mode", "world_size", "attention_backend", "torch", "device")


def save_progress(path: Path, latents: Latents, step: int, steps: int, request_sha256: str, origin: Provenance) -> None:
    """Write the latents after `step` of `steps`, atomically."""
    metadata = {
        "version": VERSION,
        "step": str(step),
        "steps": str(steps),
        "request_sha256": request_sha256,
        "provenance": json.dumps(asdict(origin)),
    }
    partial = path.with_suffix(".partial")
    tensors = {"video": latents.video.cpu().contiguous(), "audio": latents.audio.cpu().contiguous()}
    save_file(tensors, partial, metadata=metadata)
    partial.rename(path)


@dataclass(frozen=True, slots=True)
class Progress:
    """What such a file holds."""

    latents: Latents  # on the CPU
    step: int  # 1-based, the last one that is done
    request_sha256: str
    origin: Provenance

    def crossed(self, request_sha256: str, here: Provenance) -> tuple[str, ...]:
        """What of `here` differs from where the file was written, and may. Raises ResumeRefused for what may not."""
        if request_sha256 != self.request_sha256:
            raise ResumeRefused("the checkpoint is of another request")
        differing = [f.name for f in fields(Provenance) if getattr(here, f.name) != getattr(self.origin, f.name)]
        if forbidden := [name for name in differing if name not in MAY_DIFFER]:
            told = ", ".join(f"{n} {getattr(self.origin, n)!r}, not {getattr(here, n)!r}" for n in forbidden)
            raise ResumeRefused(f"the checkpoint was written with {told}")
        return tuple(differing)


def load_progress(path: Path) -> Progress:
    """Raises ResumeRefused, saying why the file cannot be used."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("version") != VERSION:
                raise ResumeRefused(f"{path} has version {metadata.get('version')!r}; this program reads {VERSION!r}")
            return Progress(
                Latents(file.get_tensor("video"), file.get_tensor("audio")),
                int(metadata["step"]),
                metadata["request_sha256"],
                Provenance(**json.loads(metadata["provenance"])),
            )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as exc:
        raise ResumeRefused(f"{path} is no checkpoint that can be read: {exc}") from exc
