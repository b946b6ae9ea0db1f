"""Ranks that render latents in one precision, with one attention after another, from the same noise."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from h3.attention import AttentionName
from h3.bench.random_request import begin_random
from h3.bench.turns import TEXT_TOKENS
from h3.checkpoint import keep_all
from h3.denoise_fleet import open_source
from h3.device import synchronize
from h3.errors import H3Error
from h3.model import Denoiser
from h3.parallel.loading import load_spread
from h3.parallel.mode import Mode
from h3.precision import Precision
from h3.sampler import Latents
from h3.sequence import Geometry, Layout
from h3.untrained import Untrained
from worker.mgpu import MGPURunner, RunnerError


@dataclass(frozen=True, slots=True)
class RenderLatents:
    """Ask for all steps, twice; answered with Rendered."""

    geometry: Geometry
    steps: int
    attention: AttentionName


@dataclass(frozen=True, slots=True)
class Rendered:
    """What came of it."""

    first: Latents  # the clean estimate of the first step: what one evaluation of the model gives
    final: Latents
    step_s: float  # of all but the first, in the middle of the second run
    is_repeated: bool  # the second run gave the same bits
    attention: str  # that was run


class QualityRanks(MGPURunner):
    """One rank, whose model is as written (`eager`) or as a render has it."""

    @torch.inference_mode()
    def setup(self, *, model: Path | Untrained, precision: Precision, eager: bool) -> None:
        source, digest = open_source(model)
        self._eager = source.load(self.device, precision, lambda _: False, keep_all) if eager else None
        self._spread = (
            None
            if eager
            else load_spread(
                source, digest, Mode.ULYSSES, self.device, self.groups.transformer_group, precision=precision
            )
        )

    @torch.inference_mode()
    def __call__(self, *, ask: RenderLatents) -> Iterator[Rendered]:
        try:
            attention = self._take_attention(ask)
        except H3Error as exc:
            raise RunnerError(str(exc)) from exc
        first, final, _ = self._render(ask)
        again, same, seconds = self._render(ask)
        is_repeated = all(torch.equal(a, b) for a, b in ((first.video, again.video), (final.video, same.video)))
        is_repeated = is_repeated and torch.equal(final.audio, same.audio)
        host = torch.device("cpu")
        if self.rank == 0:
            yield Rendered(first.to(host), final.to(host), seconds, is_repeated, attention)

    @property
    def _model(self) -> Denoiser:
        if self._eager is not None:
            return self._eager
        assert self._spread is not None
        return self._spread.model

    def _take_attention(self, ask: RenderLatents) -> str:
        if self._spread is None:
            return "as torch chooses"
        self._spread.attention.take(ask.attention, Layout(ask.geometry, TEXT_TOKENS).tokens)
        return self._spread.attention.running

    def _render(self, ask: RenderLatents) -> tuple[Latents, Latents, float]:
        denoising, noise = begin_random(self._model, ask.geometry, ask.steps, self.device)
        first, latents = denoising.step(0, noise)
        synchronize(self.device)
        begun = time.perf_counter()
        for step in range(1, ask.steps):
            _, latents = denoising.step(step, latents)
        synchronize(self.device)
        return first, latents, (time.perf_counter() - begun) / max(1, ask.steps - 1)
