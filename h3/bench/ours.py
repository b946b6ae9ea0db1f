"""Our denoiser as a contender: ranks that hold it with random text and take steps when they are asked to."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from h3.attention import AttentionName
from h3.bench.ceilings import measure_ceilings
from h3.bench.random_request import begin_random
from h3.bench.stopwatch import watching_parts
from h3.bench.timed_steps import time_steps
from h3.bench.turns import TEXT_TOKENS, Opening, Parts, TakeSteps, Turn, WatchParts
from h3.denoise import Denoising
from h3.denoise_fleet import open_source
from h3.errors import H3Error
from h3.parallel.loading import SpreadDenoiser, load_spread
from h3.parallel.mode import Mode
from h3.precision import Precision
from h3.sampler import Latents
from h3.sequence import Geometry, Layout
from h3.untrained import Untrained
from worker.mgpu import MGPURunner, RunnerError

_SCHEDULE = 8  # steps of it, taken again and again


class OurSteps(MGPURunner):
    """Takes steps. AdaLN of the whole schedule is evaluated before the first, and in no time that is told."""

    _denoiser: SpreadDenoiser

    @torch.inference_mode()
    def setup(self, *, model: Path | Untrained, mode: Mode, precision: Precision, head_groups: int) -> None:
        source, digest = open_source(model)
        group = self.groups.transformer_group
        self._denoiser = load_spread(
            source, digest, mode, self.device, group, precision=precision, head_groups=head_groups
        )
        self._refiner = self._denoiser.shelve_refiner(self.device)
        self._run: _Run | None = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # other contenders are on this GPU, too

    @torch.inference_mode()
    def __call__(self, *, ask: TakeSteps | WatchParts | Opening) -> Iterator[object]:
        match ask:
            case Opening():
                if self.rank == 0:
                    yield measure_ceilings(self.device)
            case TakeSteps():
                turn = self._take(ask)
                if self.rank == 0:
                    yield turn
            case WatchParts():
                parts = self._watch(ask)
                if self.rank == 0:
                    yield parts

    def _take(self, ask: TakeSteps) -> Turn:
        run = self._prepare(ask)
        timed = time_steps(run.step, ask.steps, self.device)
        provenance = self._denoiser.provenance(self.device)
        return Turn(
            timed.step_s,
            timed.peak_bytes,
            self._denoiser.weight_bytes,
            provenance.attention_backend,
            provenance.precision,
        )

    def _watch(self, ask: WatchParts) -> Parts:
        run = self._prepare(ask)
        run.step()
        with watching_parts(self._denoiser.model, self.device) as found:
            for _ in range(ask.steps):
                run.step()
        return Parts({part: seconds / ask.steps for part, seconds in found.items()})

    def _prepare(self, ask: TakeSteps | WatchParts) -> "_Run":
        try:
            self._denoiser.attention.take(AttentionName(ask.way), Layout(ask.geometry, TEXT_TOKENS).tokens)
        except H3Error as exc:
            raise RunnerError(str(exc)) from exc
        if self._run is None or self._run.denoising.layout.geometry != ask.geometry:
            self._run = None  # its memory first
            self._run = self._begin(ask.geometry)
        return self._run

    def _begin(self, geometry: Geometry) -> "_Run":
        with self._refiner.brought():
            return _Run(*begin_random(self._denoiser.model, geometry, _SCHEDULE, self.device))


@dataclass(slots=True)
class _Run:
    denoising: Denoising
    latents: Latents
    taken: int = field(default=0)

    def step(self) -> None:
        self.denoising.step(self.taken % _SCHEDULE, self.latents)
        self.taken += 1
