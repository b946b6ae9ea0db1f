"""Our denoiser as a contender: ranks that hold it with random text and take steps when they are asked to."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from h3.attention import AttentionName
from h3.bench.ceilings import measure_ceilings
from h3.bench.stopwatch import watching_parts
from h3.bench.turns import TEXT_TOKENS, Opening, Parts, TakeSteps, Turn, WatchParts
from h3.denoise import Denoising
from h3.denoise_fleet import open_source
from h3.errors import H3Error
from h3.parallel.loading import SpreadDenoiser, load_spread
from h3.parallel.mode import Mode
from h3.precision import Precision
from h3.sampler import Latents, draw_noise, make_schedule
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
        run.step()  # the device is as warm as it was before another contender's turn
        synchronize(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        seconds = []
        for _ in range(ask.steps):
            begun = time.perf_counter()
            run.step()
            synchronize(self.device)
            seconds.append(time.perf_counter() - begun)
        provenance = self._denoiser.provenance(self.device)
        return Turn(
            tuple(seconds),
            peak_bytes(self.device),
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
        model = self._denoiser.model
        generator = torch.Generator().manual_seed(0)
        states = torch.randn(TEXT_TOKENS, model.config.text_dim, generator=generator).to(self.device)
        self._refiner.bring()
        denoising = Denoising.begin(model, states, Layout(geometry, TEXT_TOKENS), make_schedule(_SCHEDULE))
        self._refiner.put_away()
        noise = draw_noise(geometry, model.config.in_channels, model.config.audio_in_channels, seed=0)
        return _Run(denoising, noise.latents.to(self.device))


@dataclass(slots=True)
class _Run:
    denoising: Denoising
    latents: Latents
    taken: int = field(default=0)

    def step(self) -> None:
        self.denoising.step(self.taken % _SCHEDULE, self.latents)
        self.taken += 1


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """Of GPU memory since it was reset; 0 on the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
