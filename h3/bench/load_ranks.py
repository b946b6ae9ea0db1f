"""Ranks that tell how they have loaded: the denoiser alone, or the whole model, which can then render."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from h3.attention import AttentionName
from h3.bench.page_cache import BytesRead, count_bytes_read
from h3.checkpoint import Trim, keep_all
from h3.config import DenoiserConfig
from h3.denoise_fleet import open_source
from h3.device import take_peak
from h3.laps import Laps
from h3.model import Denoiser
from h3.parallel.loading import Source, SpreadDenoiser, load_spread
from h3.parallel.mode import Mode
from h3.precision import Precision
from h3.runner import H3Runner
from jobs.request import ResolvedRequest
from worker.collector import uncollected_imports
from worker.items import Finished, Item, Resume, Segment, StreamHeader, TextEncoded
from worker.mgpu import MGPURunner


@dataclass(frozen=True, slots=True)
class TellLoad:
    """Ask every rank how it has loaded; each answers with Loaded."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One rank. Moments are of the machine's monotonic clock, which all of its processes share."""

    rank: int
    made_at: float  # the runner: torch and its module are imported, the device is bound
    setup_at: float
    ready_at: float
    setup_s: Mapping[str, float]  # what lies between the two, in this order
    read: BytesRead | None
    weight_bytes: int  # of the denoiser
    peak_bytes: int  # of GPU memory; 0 on the CPU


@dataclass(frozen=True, slots=True)
class Peaks:
    """GPU memory of rank 0 at its most, by phase; zeros on the CPU."""

    bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TimedSource:
    """A denoiser's weights, with their reading in a lap of its own."""

    source: Source
    laps: Laps

    @property
    def config(self) -> DenoiserConfig:
        return self.source.config

    @property
    def precision(self) -> Precision:
        return self.source.precision

    def load(
        self,
        device: torch.device,
        precision: Precision | None,
        waits: Callable[[str], bool] = lambda _: False,
        trim: Trim = keep_all,
    ) -> Denoiser:
        """As the source does."""
        self.laps.end("ranks compared")
        model = self.source.load(device, precision, waits, trim)
        self.laps.end("weights read and placed")
        return model


class DenoiserLoad(MGPURunner):
    """Loads a denoiser as every runner of ours does, and tells how that went."""

    def __init__(self) -> None:
        self._made_at = time.monotonic()

    @torch.inference_mode()
    def setup(self, *, model: Path, mode: Mode, precision: Precision | None) -> None:
        laps, begun = Laps(self.device), time.monotonic()
        source, digest = open_source(model)
        laps.end("headers")
        timed, group = TimedSource(source, laps), self.groups.transformer_group
        denoiser = load_spread(timed, digest, mode, self.device, group, precision=precision)
        laps.end("kernels chosen")
        self._loaded = tell_load(self, self._made_at, begun, laps.seconds, denoiser)

    def __call__(self, *, request: TellLoad) -> Iterator[Loaded]:
        yield self._loaded


class ModelLoad(H3Runner):
    """The worker's runner, which tells how it has loaded, too."""

    def __init__(self) -> None:
        self._made_at = time.monotonic()

    def setup(
        self,
        *,
        checkpoint: str,
        mode: str = Mode.ULYSSES,
        precision: str | None = None,
        attention: str = AttentionName.AUTO,
    ) -> None:
        laps, begun = Laps(self.device), time.monotonic()
        with uncollected_imports():
            import h3.load  # noqa: F401  # which takes seconds; the runner imports it in its setup
        laps.end("imports")
        super().setup(checkpoint=checkpoint, mode=mode, precision=precision, attention=attention)
        seconds = laps.seconds | dict(self._model.load_s)
        self._loaded = tell_load(self, self._made_at, begun, seconds, self._model.denoiser)

    def __call__(  # type: ignore[override]  # it says more than the worker's
        self, *, request: ResolvedRequest | TellLoad, work_dir: str = "", resume: Resume | None = None
    ) -> Iterator[Item | Loaded | Peaks]:
        if isinstance(request, TellLoad):
            yield self._loaded
            return
        peaks: dict[str, int] = {}
        take_peak(self.device)
        for item in super().__call__(request=request, work_dir=work_dir, resume=resume):
            phase = _phase_of(item)
            peaks[phase] = max(peaks.get(phase, 0), take_peak(self.device))
            yield item
        if self.rank == 0:
            yield Peaks(peaks)


def tell_load(
    runner: MGPURunner, made_at: float, setup_at: float, seconds: Mapping[str, float], denoiser: SpreadDenoiser
) -> Loaded:
    """At the end of a setup."""
    read = count_bytes_read()
    return Loaded(
        runner.rank,
        made_at,
        setup_at,
        time.monotonic(),
        seconds,
        read,
        denoiser.weight_bytes,
        take_peak(runner.device),
    )


def _phase_of(item: Item) -> str:
    """What has ended with it."""
    match item:
        case TextEncoded():
            return "text"
        case StreamHeader():
            return "sound"
        case Segment() | Finished():
            return "decode"
    return "steps"  # the preparation, too
