"""Times a whole render through the worker's runner on real ranks, without a queue: cold, and again in the same fleet.

The cold one begins with the call that starts ranks, the warm one with its request; both end when the video and its
report are there. What the runner tells of its phases is completed to what the caller has waited.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from h3.bench.fleet import BenchFleet
from h3.bench.load import Start, Subject, hear_loads
from h3.bench.load_ranks import Peaks
from h3.bench.page_cache import Warming, find_files, read_into_cache
from h3.bench.turns import Tell
from h3.denoise_fleet import plain_rank_errors
from h3.errors import ConfigError, RanksFailed
from h3.model_folder import ModelFolder
from h3.sequence import Geometry
from h3.text_files import read_sizes
from jobs.request import ResolvedRequest
from worker.items import Finished, Segment, StepDone, TextEncoded

SEED = 0
PROMPT = (
    "A red kite climbs over long dunes at dusk while a child in a yellow coat runs after it along the water's edge; "
    "the camera follows low over the sand, wind tears at the line, waves break slowly, gulls cry somewhere above, and "
    "far off a lighthouse begins to turn its beam across a sky that goes from orange to deep violet."
)


class Phase(StrEnum):
    """Of what a caller waits for, one after the other."""

    LOAD = "load"
    BEGIN = "kernels chosen"  # once for each size of render, where there is a choice
    TEXT = "text"
    PREPARE = "refiner and AdaLN"
    STEPS = "steps"
    ASIDE = "checkpoint"  # of the last step
    FIRST_SEGMENT = "decode, until the first segment"  # with the sound
    DECODE = "decode, the rest and the mp4"
    REST = "all else"  # between processes, and the report


class Timings(BaseModel):
    """Of the runner's report."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    begin_s: float
    text_s: float
    prepare_s: float
    step_s: tuple[float, ...]
    aside_s: float
    sound_s: float
    first_segment_s: float
    decode_s: float

    def phases(self, load_s: float, seconds: float) -> dict[Phase, float]:
        """They add up to `seconds`."""
        told = {
            Phase.LOAD: load_s,
            Phase.BEGIN: self.begin_s,
            Phase.TEXT: self.text_s,
            Phase.PREPARE: self.prepare_s,
            Phase.STEPS: sum(self.step_s),
            Phase.ASIDE: self.aside_s,
            Phase.FIRST_SEGMENT: self.first_segment_s,
            Phase.DECODE: self.decode_s - self.first_segment_s,
        }
        return told | {Phase.REST: seconds - sum(told.values())}


class RunnerReport(BaseModel):
    """What the bench needs of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    timings: Timings
    provenance: dict[str, object]
    latents_sha256: dict[str, str]


@dataclass(frozen=True, slots=True)
class Rendered:
    """One render."""

    seconds: float
    phases: Mapping[Phase, float]  # they add up to that
    first_segment_s: float  # after which the caller has one
    text_tokens: int
    video_bytes: int
    peak_bytes: Mapping[str, int]  # of GPU memory, on rank 0
    report: RunnerReport

    @property
    def median_step_s(self) -> float:
        return statistics.median(self.report.timings.step_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was rendered, and how long it took."""

    request: ResolvedRequest
    text_layers: int
    warming: Warming
    start: Start
    cold: Rendered
    warm: Rendered
    shutdown_s: float

    @property
    def is_reproduced(self) -> bool:
        """Whether both have the same latents."""
        return self.cold.report.latents_sha256 == self.warm.report.latents_sha256


def make_request(geometry: Geometry, steps: int) -> ResolvedRequest:
    """Without previews, and with no checkpoint but the last. Raises ConfigError for what no client may ask for."""
    try:
        return ResolvedRequest(
            prompt=PROMPT,
            width=geometry.width,
            height=geometry.height,
            frames=geometry.frames,
            steps=steps,
            seed=SEED,
            preview_every=0,
            checkpoint_every=0,
        )
    except ValidationError as exc:
        [first, *_] = exc.errors()
        raise ConfigError(f"no request may have {'.'.join(map(str, first['loc']))} {first['input']}") from exc


def measure(subject: Subject, request: ResolvedRequest, tell: Tell) -> Outcome:
    """Raises ConfigError, PartitionError, PlacementError, RanksFailed, CheckpointError."""
    if not subject.is_whole:
        raise ConfigError(f"{subject.path} is not the root of a checkpoint with all parts of a model")
    subject.check()
    warming = read_into_cache(find_files(subject.path))
    begun_at = time.monotonic()
    with subject.running() as fleet:
        ready_at = time.monotonic()
        tell(f"all ranks are ready after {ready_at - begun_at:.2f} s")
        cold = Watch(begun_at, ready_at - begun_at, tell).render(fleet, request)
        tell(f"cold: {cold.seconds:.2f} s")
        warm = Watch(time.monotonic(), 0.0, tell).render(fleet, request)
        tell(f"warm: {warm.seconds:.2f} s")
        start = Start.between(begun_at, ready_at, hear_loads(fleet))
        leaving_at = time.monotonic()
    text_layers = read_sizes(ModelFolder.below(subject.path).text_encoder).layers
    return Outcome(request, text_layers, warming, start, cold, warm, time.monotonic() - leaving_at)


@dataclass(slots=True)
class Watch:
    """Follows one render from outside."""

    begun_at: float
    load_s: float
    tell: Tell
    first_segment_at: float = 0.0
    text_tokens: int = 0

    def render(self, fleet: BenchFleet, request: ResolvedRequest) -> Rendered:
        """Raises ConfigError for what every rank refuses, RanksFailed."""
        ended: _Ended | None = None
        peaks = Peaks({})
        with TemporaryDirectory(prefix="h3-bench-") as folder, plain_rank_errors():
            for item in fleet.controller.stream(request=request, work_dir=folder):
                match item:
                    case Finished():
                        ended = _Ended.of(item)
                    case Peaks():
                        peaks = item
                    case _:
                        self._note(item)
        if ended is None:
            raise RanksFailed("the ranks have ended without a video")
        return self._sum_up(ended, peaks)

    def _note(self, item: object) -> None:
        match item:
            case TextEncoded():
                self.text_tokens = item.tokens
            case StepDone():
                self.tell(f"step {item.step}/{item.steps} {item.seconds:.3f} s")
            case Segment(index=0):
                self.first_segment_at = time.monotonic()

    def _sum_up(self, ended: "_Ended", peaks: Peaks) -> Rendered:
        seconds = ended.at - self.begun_at
        return Rendered(
            seconds,
            ended.report.timings.phases(self.load_s, seconds),
            self.first_segment_at - self.begun_at,
            self.text_tokens,
            ended.video_bytes,
            peaks.bytes,
            ended.report,
        )


@dataclass(frozen=True, slots=True)
class _Ended:
    at: float
    report: RunnerReport
    video_bytes: int

    @classmethod
    def of(cls, item: Finished) -> Self:
        """Its files are gone a moment later."""
        at = time.monotonic()
        return cls(at, RunnerReport.model_validate_json(Path(item.report).read_bytes()), item.video.stat().st_size)
