"""Ranks that hold a denoiser and take requests from files, without a worker: for commands and benches."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from h3.attention import AttentionName, require_installed
from h3.checkpoint import DenoiserFiles
from h3.conditioning import Conditioning, load_conditioning
from h3.config import DenoiserConfig
from h3.denoise import Denoising
from h3.device import synchronize, take_peak
from h3.errors import CheckpointError, ConfigError, H3Error, PartitionError, PlacementError, RanksDisagree, RanksFailed
from h3.latents_file import read_latents
from h3.model_folder import digest, find_denoiser
from h3.parallel.loading import Source, SpreadDenoiser, load_spread
from h3.parallel.mode import Mode, check_mode
from h3.partition import split_evenly
from h3.precision import Precision
from h3.provenance import Provenance
from h3.sampler import Latents, Noise, draw_noise, make_schedule
from h3.sequence import Geometry
from h3.transport import Transport, measure_transport
from h3.untrained import Untrained
from worker.mgpu import (
    AsymmetricRunnerError,
    FailureKind,
    FatalFleetError,
    MGPUController,
    MGPURunner,
    RunnerError,
    SymmetricRunnerError,
    UnreadableResultError,
)

# What a rank raises that whoever gave the files and flags can mend, by the names that arrive here.
_USAGE_ERRORS = {
    error.__name__: error for error in (CheckpointError, ConfigError, PartitionError, PlacementError, RanksDisagree)
}


@dataclass(frozen=True, slots=True)
class Ranks:
    """What computes, and how it is shared."""

    world_size: int
    device: str  # "cuda" or "cpu"
    mode: Mode
    precision: Precision | None  # None: as the weights are stored
    attention: AttentionName = AttentionName.AUTO


@dataclass(frozen=True, slots=True)
class DenoiseRequest:
    """What `h3render denoise` is asked for."""

    text_states: Path
    noise: Path | None  # else drawn from the seed
    geometry: Geometry
    steps: int
    seed: int
    meters_transport: bool = False  # in one more step, whose outcome is thrown away


@dataclass(frozen=True, slots=True)
class StepTaken:
    """One step on rank 0."""

    step: int  # 1-based
    seconds: float


@dataclass(frozen=True, slots=True)
class Denoised:
    """The end, from every rank; only rank 0 sends the latents."""

    rank: int
    latents: Latents | None
    provenance: Provenance
    peak_bytes: int  # of GPU memory while sampling; 0 on the CPU
    weight_bytes: int  # of the denoiser on this rank
    transport: Transport | None  # of one step
    transport_step_s: float | None  # how long that step took


class DenoiseRunner(MGPURunner):
    """Denoises from files on every rank."""

    _denoiser: SpreadDenoiser

    @torch.inference_mode()
    def setup(
        self, *, model: Path | Untrained, mode: Mode, precision: Precision | None, attention: AttentionName
    ) -> None:
        """Load the denoiser, spread over the ranks."""
        source, digest = open_source(model)
        group = self.groups.transformer_group
        self._denoiser = load_spread(source, digest, mode, self.device, group, precision=precision, attention=attention)
        self._refiner = self._denoiser.shelve_refiner(self.device)

    @torch.inference_mode()
    def __call__(self, *, request: DenoiseRequest) -> Iterator[StepTaken | Denoised]:
        try:
            denoising, latents = self._begin(request)
        except H3Error as exc:
            raise RunnerError(str(exc)) from exc
        take_peak(self.device)
        for step in range(request.steps):
            latents, seconds = self._step(denoising, step, latents)
            if self.rank == 0:
                yield StepTaken(step + 1, seconds)
        peak_bytes = take_peak(self.device)
        transport, transport_step_s = None, None
        if request.meters_transport:
            with measure_transport() as meter:
                _, transport_step_s = self._step(denoising, request.steps - 1, latents)
            transport = meter.read()
        yield Denoised(
            self.rank,
            latents.to(torch.device("cpu")) if self.rank == 0 else None,
            self._denoiser.provenance(self.device),
            peak_bytes,
            self._denoiser.weight_bytes,
            transport,
            transport_step_s,
        )

    def _step(self, denoising: Denoising, step: int, latents: Latents) -> tuple[Latents, float]:
        """The next latents, and the seconds they took."""
        begun = time.perf_counter()
        _, latents = denoising.step(step, latents)
        synchronize(self.device)
        return latents, time.perf_counter() - begun

    def _begin(self, request: DenoiseRequest) -> tuple[Denoising, Latents]:
        conditioning = load_conditioning(request.text_states)
        model = self._denoiser.model
        noise = read_noise(request, model.config, len(conditioning.keyframes))
        schedule = make_schedule(request.steps)
        with self._refiner.brought():
            denoising = conditioning.begin(model, request.geometry, schedule, noise, self.device)
        self._denoiser.attention.take(AttentionName.AUTO, denoising.layout.tokens)
        return denoising, noise.latents.to(self.device)


def open_source(model: Path | Untrained) -> tuple[Source, str]:
    """Where the weights come from, and its digest. Raises CheckpointError."""
    if isinstance(model, Untrained):
        return model, model.digest
    files = DenoiserFiles.open(find_denoiser(model))
    return files, digest([files.path])


def check(model: Path | Untrained, ranks: Ranks, request: DenoiseRequest) -> int:
    """Refuse what can be refused before a rank is started. Returns how many tokens the sequence has.

    Raises CheckpointError, ConfigError, PartitionError.
    """
    require_devices(ranks.world_size, on_gpus=ranks.device == "cuda")
    require_installed(ranks.attention, on_gpus=ranks.device == "cuda")
    source, _ = open_source(model)
    if isinstance(source, DenoiserFiles):
        source.check(ranks.precision)
    check_mode(ranks.mode, source.config, ranks.precision or source.precision, ranks.world_size)
    conditioning = load_conditioning(request.text_states)
    _check_widths(request.text_states, conditioning, source.config)
    tokens = conditioning.layout(request.geometry).tokens
    split_evenly(tokens, ranks.world_size, what="tokens")
    read_noise(request, source.config, len(conditioning.keyframes))
    return tokens


def require_devices(world_size: int, *, on_gpus: bool) -> None:
    """Raises ConfigError unless each rank can have a GPU, if it is to."""
    if on_gpus and world_size > (there := torch.cuda.device_count()):
        raise ConfigError(f"--world-size {world_size} takes a GPU for each rank; torch sees {there} here")


def _check_widths(path: Path, conditioning: Conditioning, config: DenoiserConfig) -> None:
    """Whether these are of a model like this one."""
    states = list(conditioning.states.shape)
    if states[1] != config.text_dim:
        raise CheckpointError(f"{path}: states is {states}, expected [tokens, {config.text_dim}]")
    if other := next((len(k) for k in conditioning.keyframes if len(k) != config.in_channels), None):
        raise CheckpointError(f"{path}: keyframes have {other} channels, expected {config.in_channels}")


def read_noise(request: DenoiseRequest, config: DenoiserConfig, keyframes: int) -> Noise:
    """Drawn from the seed; the latents' from the file, if there is one. Raises CheckpointError."""
    channels = config.in_channels, config.audio_in_channels
    drawn = draw_noise(request.geometry, *channels, request.seed, keyframes)
    if request.noise is None:
        return drawn
    return Noise(drawn.keyframes, read_latents(request.noise, request.geometry, *channels))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the ranks have sent."""

    load_s: float
    steps: list[StepTaken]
    ends: list[Denoised]  # in rank order

    @property
    def latents(self) -> Latents:
        [latents] = [end.latents for end in self.ends if end.latents is not None]
        return latents


@dataclass(frozen=True, slots=True)
class Fleet:
    """Ranks that hold the denoiser."""

    controller: MGPUController
    load_s: float

    def run(self, request: DenoiseRequest, tell: Callable[[StepTaken], object]) -> Outcome:
        """Denoise once. Raises ConfigError, RanksFailed."""
        steps: list[StepTaken] = []
        ends: list[Denoised] = []
        with plain_rank_errors():
            for item in self.controller.stream(request=request):
                if isinstance(item, StepTaken):
                    steps.append(item)
                    tell(item)
                elif isinstance(item, Denoised):
                    ends.append(item)
        return Outcome(self.load_s, steps, sorted(ends, key=lambda end: end.rank))


@contextmanager
def running_ranks(
    model: Path | Untrained, ranks: Ranks, runner: type[DenoiseRunner] = DenoiseRunner
) -> Iterator[Fleet]:
    """Start them and load. Raises what `denoise` does."""
    begun = time.perf_counter()
    with starting_ranks(
        runner,
        ranks.world_size,
        on_gpus=ranks.device == "cuda",
        model=model.absolute() if isinstance(model, Path) else model,
        mode=ranks.mode,
        precision=ranks.precision,
        attention=ranks.attention,
    ) as controller:
        yield Fleet(controller, time.perf_counter() - begun)


@contextmanager
def starting_ranks(
    runner: type[MGPURunner], world_size: int, *, on_gpus: bool, allow_shared: bool = False, **setup: Any
) -> Iterator[MGPUController]:
    """Ranks of any runner, loaded. Raises ConfigError, RanksFailed and what loading raises."""
    backend: Literal["nccl", "gloo"] = "nccl" if on_gpus else "gloo"
    with MGPUController(
        runner, num_gpus=world_size, backend=backend, outputs="cpu", allow_shared=allow_shared
    ) as controller:
        with plain_rank_errors():
            controller.start(**setup)
        yield controller


@contextmanager
def plain_rank_errors() -> Iterator[None]:
    """The controller's errors become ours: what a rank refused as it was raised there, all else RanksFailed."""
    try:
        yield
    except SymmetricRunnerError as exc:
        raise ConfigError(str(exc.errors[0] if exc.errors else exc)) from exc
    except FatalFleetError as exc:
        raise _translate(exc) from exc
    except (AsymmetricRunnerError, UnreadableResultError) as exc:
        raise RanksFailed(str(exc)) from exc


def _translate(error: FatalFleetError) -> H3Error:
    failure = error.primary
    if failure is None:
        return RanksFailed(f"{str(error).splitlines()[0]}{_where(error)}")
    if failure.cause_type in _USAGE_ERRORS:
        return _USAGE_ERRORS[failure.cause_type](failure.text)
    cause = failure.text.split("\n", 1)[0]  # torch adds pages about its memory
    told = f"rank {failure.rank} {failure.kind} in phase {failure.phase}: {failure.cause_type}: {cause}"
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        told += "; take fewer frames or pixels, more ranks, or weights of a smaller precision"
    return RanksFailed(f"{told}{_where(error)}")


def _where(error: FatalFleetError) -> str:
    return f" (logs of the ranks: {error.evidence[0].parent})" if error.evidence else ""
