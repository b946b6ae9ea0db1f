"""What a render runner yields, and all that the worker knows of it. Plain dataclasses, no torch.

Rank 0 speaks for the fleet: the other ranks yield nothing. A file named here lies on local disk, is complete,
and belongs to the worker from then on: it uploads the file and deletes it.

The worker calls a runner with `request` (jobs.request.ResolvedRequest), `work_dir` (str) and `resume` (Resume or None),
and sets it up with `checkpoint` (str). A runner class may have the classmethods `preflight(world_size, *, checkpoint)`,
which raises RunnerError for what it cannot serve before any rank is started, and
`abilities(world_size, *, checkpoint)`, which returns Abilities, and `describe_placement(world_size, *, checkpoint)`,
which returns lines for people. A runner whose ranks can share a render in several ways takes `mode` (str, a
jobs.request.Mode), too, in `setup` and in all of these that it has: the worker gives it where H3_MODE names one.
Likewise `precision` (str, a jobs.request.Precision) of the weights, where H3_PRECISION names one, and `attention` (str,
a jobs.request.Attention), for requests that name none, where H3_ATTENTION does.
"""

from dataclasses import dataclass
from pathlib import Path

FIRST_FRAME, LAST_FRAME = "first-frame", "last-frame"  # files in `work_dir`, of a request that names such pictures


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a runner can render with what it is set up with. Jobs that need more wait for another worker."""

    model_digest: str
    modes: tuple[str, ...]  # jobs.request.Mode
    precisions: tuple[str, ...]  # jobs.request.Precision
    most_pixels: int | None = None  # of all frames together, by predicted peak memory; None: not known
    attentions: tuple[str, ...] = ()  # jobs.request.Attention; none: jobs that name one wait for another worker


@dataclass(frozen=True, slots=True)
class Resume:
    """What earlier attempts have done. A runner may go on from there, or begin anew.

    One that goes on with segment `segments` yields neither the header nor any segment before; one that yields a header
    begins the stream anew.
    """

    step: int  # 1-based, the last one that is done; 0: none
    checkpoint: Path | None  # safetensors, of that step
    stream: tuple[Path, ...] = ()  # copies of what is published: the header, and the segments in playing order

    @property
    def segments(self) -> int:
        """How many are published."""
        return max(0, len(self.stream) - 1)


@dataclass(frozen=True, slots=True)
class TextEncoded:
    """The prompt's states are ready."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepDone:
    """One denoising step is done on every rank."""

    step: int  # 1-based
    steps: int
    sigma: float  # video noise level at which the step began, 1 = pure noise
    seconds: float


@dataclass(frozen=True, slots=True)
class Preview:
    """A small picture of the current clean-latent estimate."""

    step: int
    path: Path  # PNG


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Enough to resume the denoising after `step`."""

    step: int
    path: Path  # safetensors


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """The initialisation segment that every `Segment` needs. Comes once, before the first of them."""

    path: Path  # MP4: ftyp and moov
    segments: int  # how many will follow


@dataclass(frozen=True, slots=True)
class Segment:
    """A playable piece of the output: one decoded clip with its sound."""

    index: int  # 0-based, in playing order
    path: Path  # MP4 fragment: moof and mdat, opens with an IDR picture
    duration_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole video, and how it was made."""

    video: Path  # MP4
    report: Path  # JSON


Item = TextEncoded | StepDone | Preview | Checkpoint | StreamHeader | Segment | Finished
