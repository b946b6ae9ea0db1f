"""Taking a render up again after a step: the file of latents and where they stand, and when one is due.

safetensors, with two fp32 tensors (`video` [V, patch_dim], `audio` [2A, channels]) and, as metadata, the step and
everything that the bits depend on, so that a reader can refuse what it must not continue.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from h3.errors import ResumeRefused
from h3.mp4 import SegmentWriter
from h3.provenance import Provenance
from h3.sampler import Latents

VERSION = "2"
CHECKPOINT_AFTER_S = 60.0  # at least so often, whatever number of steps that is
# With another one of these a render goes on within its tolerance; with another of the rest it would be another render.
MAY_DIFFER = ("mode", "world_size", "attention_backend", "torch", "device", "text_device", "pointwise")


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


@dataclass(frozen=True, slots=True)
class TakenUp:
    """What a render goes on from."""

    step: int = 0  # the last one that is done
    latents: Latents | None = None  # after it
    across: tuple[str, ...] = ()  # what was different there
    stream: tuple[Path, ...] = ()  # header and segments that are published

    def continued_by(self, writer: SegmentWriter) -> "TakenUp":
        """With the stream only if this writer can go on with it: another encoder version has another header."""
        if not self.stream or self.stream[0].read_bytes() != writer.header.read_bytes():
            return replace(self, stream=())
        writer.skip(self.segments)
        return self

    @property
    def segments(self) -> int:
        return max(0, len(self.stream) - 1)

    def report(self) -> dict[str, object] | None:
        """As the render's report has it; None for one that began at its beginning."""
        if self.latents is None:
            return None
        return {"step": self.step, "segments": self.segments, "across": list(self.across)}


@dataclass(slots=True)
class Cadence:
    """When checkpoints are due: every so many steps (0 = only after the last), and after a time."""

    every: int
    steps: int
    step: int  # of the last one
    saved_at: float

    def is_due(self, step: int, now: float) -> bool:
        """Whether one is, after this step; then it counts as saved."""
        is_late = self.every > 0 and now - self.saved_at >= CHECKPOINT_AFTER_S
        if not (is_late or is_due(step, self.every) or step == self.steps):
            return False
        self.step, self.saved_at = step, now
        return True


def is_due(step: int, every: int) -> bool:
    """Whether something done `every` so many steps (0 = never) is due after this one."""
    return every > 0 and step % every == 0
