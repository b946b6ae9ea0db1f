"""The phases of a render as commands on files: encode, denoise, decode. For research and tests; knows no queue."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from h3.checkpoint import DenoiserFiles
from h3.conditioning import Conditioning, encode, load_conditioning
from h3.config import DenoiserConfig
from h3.denoise import Denoising
from h3.errors import CheckpointError, ConfigError, H3Error, PartitionError, PlacementError, RanksDisagree, RanksFailed
from h3.model import ATTENTION_BACKEND
from h3.model_folder import ModelFolder, digest, find_denoiser
from h3.mp4 import SegmentWriter, remux
from h3.parallel.loading import Source, SpreadDenoiser, load_spread
from h3.parallel.mode import Mode, check_mode
from h3.partition import split_evenly
from h3.precision import Precision
from h3.provenance import Provenance, describe_device, sha256
from h3.sampler import Latents, Noise, draw_noise, make_schedule
from h3.sequence import Anchor, Geometry, patchify, unpatchify
from h3.tensor_file import TensorReader, read_header, write_tensors
from h3.transport import Transport, measure_transport
from h3.untrained import Untrained
from h3.weights import Part
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

REPORT_VERSION = 2
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
    def setup(self, *, model: Path | Untrained, mode: Mode, precision: Precision | None) -> None:
        """Load the denoiser, spread over the ranks."""
        source, digest = open_source(model)
        group = self.groups.transformer_group
        self._denoiser = load_spread(source, digest, mode, self.device, group, precision=precision)

    @torch.inference_mode()
    def __call__(self, *, request: DenoiseRequest) -> Iterator[StepTaken | Denoised]:
        try:
            denoising, latents = self._begin(request)
        except H3Error as exc:
            raise RunnerError(str(exc)) from exc
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        for step in range(request.steps):
            latents, seconds = self._step(denoising, step, latents)
            if self.rank == 0:
                yield StepTaken(step + 1, seconds)
        peak_bytes = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        transport, transport_step_s = None, None
        if request.meters_transport:
            with measure_transport() as meter:
                _, transport_step_s = self._step(denoising, request.steps - 1, latents)
            transport = meter.read()
        yield Denoised(
            self.rank,
            latents.to(torch.device("cpu")) if self.rank == 0 else None,
            self._provenance(),
            peak_bytes,
            self._denoiser.weight_bytes,
            transport,
            transport_step_s,
        )

    def _step(self, denoising: Denoising, step: int, latents: Latents) -> tuple[Latents, float]:
        """The next latents, and the seconds they took."""
        begun = time.perf_counter()
        _, latents = denoising.step(step, latents)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return latents, time.perf_counter() - begun

    def _begin(self, request: DenoiseRequest) -> tuple[Denoising, Latents]:
        conditioning = load_conditioning(request.text_states)
        model = self._denoiser.model
        noise = read_noise(request, model.config, len(conditioning.keyframes))
        schedule = make_schedule(request.steps)
        denoising = conditioning.begin(model, request.geometry, schedule, noise, self.device)
        return denoising, noise.latents.to(self.device)

    def _provenance(self) -> Provenance:
        return Provenance(
            model_digest=self._denoiser.digest,
            precision=self._denoiser.precision,
            mode=self._denoiser.mode,
            world_size=self.world_size,
            attention_backend=ATTENTION_BACKEND,
            torch=torch.__version__,
            device=describe_device(self.device),
        )


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
    if ranks.device == "cuda" and ranks.world_size > (there := torch.cuda.device_count()):
        raise ConfigError(f"--world-size {ranks.world_size} takes a GPU for each rank; torch sees {there} here")
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


def denoise(
    model: Path | Untrained,
    ranks: Ranks,
    request: DenoiseRequest,
    folder: Path,
    *,
    tell: Callable[[StepTaken], object],
) -> Path:
    """Run it on the ranks, and write latents.safetensors and report.json. Returns the report's path.

    Raises CheckpointError, ConfigError, PartitionError, nearly always before any rank is started; RanksFailed.
    """
    tokens = check(model, ranks, request)
    folder.mkdir(parents=True, exist_ok=True)
    with running_ranks(model, ranks) as fleet:
        outcome = fleet.run(request, tell)
    write_latents(folder / "latents.safetensors", outcome.latents, request.geometry)
    report = folder / "report.json"
    report.write_text(json.dumps(describe(model, request, tokens, outcome), indent=2) + "\n")
    return report


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
        with _plain_rank_errors():
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
    backend: Literal["nccl", "gloo"] = "nccl" if ranks.device == "cuda" else "gloo"
    with MGPUController(runner, num_gpus=ranks.world_size, backend=backend, outputs="cpu") as controller:
        begun = time.perf_counter()
        with _plain_rank_errors():
            controller.start(
                model=model.absolute() if isinstance(model, Path) else model, mode=ranks.mode, precision=ranks.precision
            )
        yield Fleet(controller, time.perf_counter() - begun)


@contextmanager
def _plain_rank_errors() -> Iterator[None]:
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


def describe(model: Path | Untrained, request: DenoiseRequest, tokens: int, outcome: Outcome) -> dict[str, object]:
    """The report."""
    return {
        "version": REPORT_VERSION,
        "model": str(model),
        "text_states": str(request.text_states),
        "noise": str(request.noise) if request.noise else None,
        **asdict(request.geometry),
        "tokens": tokens,
        "steps": request.steps,
        "seed": request.seed,
        "provenance": asdict(outcome.ends[0].provenance),
        "load_s": outcome.load_s,
        "step_s": [step.seconds for step in outcome.steps],
        "peak_bytes": [end.peak_bytes for end in outcome.ends],
        "weight_bytes": [end.weight_bytes for end in outcome.ends],
        "transport": _describe_transport(outcome.ends) if request.meters_transport else None,
        "latents_sha256": {"video": sha256(outcome.latents.video), "audio": sha256(outcome.latents.audio)},
    }


def _describe_transport(ends: list[Denoised]) -> dict[str, object]:
    """Of one step, metered."""
    return {
        "step_s": ends[0].transport_step_s,
        "ranks": [asdict(end.transport) for end in ends if end.transport is not None],
    }


def write_latents(path: Path, latents: Latents, geometry: Geometry) -> None:
    """`video` [C, F, Hl, Wl] and `audio` [2, channels, A], fp32."""
    audio = latents.audio.unflatten(0, (2, -1)).transpose(1, 2).contiguous()
    write_tensors(path, {"video": unpatchify(latents.video, geometry).contiguous(), "audio": audio}, {"format": "pt"})


def read_latents(path: Path, geometry: Geometry, video_channels: int, audio_channels: int) -> Latents:
    """What `write_latents` writes. Raises CheckpointError naming the tensor that is of another form."""
    header = read_header(path)
    wanted = {
        "video": (video_channels, geometry.latent_frames, geometry.latent_height, geometry.latent_width),
        "audio": (2, audio_channels, geometry.audio_latents),
    }
    with TensorReader(torch.device("cpu")) as reader:
        for name, shape in wanted.items():
            if name not in header.tensors:
                raise CheckpointError(f"{path} lacks tensor {name}")
            Part(name, shape, (torch.float32,)).check(header.tensors[name])
        video, audio = (reader.read(header.tensors[name]) for name in wanted)
    return Latents(patchify(video), audio.transpose(1, 2).flatten(0, 1).contiguous())


def encode_text(
    model: Path,
    prompt: str,
    pictures: Mapping[Anchor, Path],
    geometry: Geometry | None,
    device: torch.device,
    out: Path,
) -> int:
    """Write the states of a prompt, and of keyframes at the video's size. Returns how many tokens they have.

    Raises CheckpointError, ConfigError.
    """
    from h3.text import load_text_encoder
    from h3.vae import load_video_encoder

    if bool(pictures) != (geometry is not None):
        raise ConfigError("a keyframe is encoded at the video's size: give pictures, --width and --height, or none")
    _require_folder_of(out)
    folder = ModelFolder.below(model)
    text = load_text_encoder(folder.text_encoder, folder.tokenizer, device)
    video = load_video_encoder(folder.video_vae, device) if pictures else None
    with torch.inference_mode():
        conditioning = encode(prompt, pictures, geometry, text, video)
    conditioning.save(out)
    return len(conditioning.states)


def decode(model: Path, path: Path, device: torch.device, out: Path) -> Path:
    """Write the video of latents as `write_latents` writes them. Raises CheckpointError, ConfigError."""
    from h3.vae import load_audio_decoder, load_video_decoder

    _require_folder_of(out)
    geometry = _read_geometry(path)
    folder = ModelFolder.below(model)
    video, audio = load_video_decoder(folder.video_vae, device), load_audio_decoder(folder.audio_vae, device)
    latents = read_latents(path, geometry, video.channels, audio.channels)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as pieces:
        sound = audio.decode(latents.audio).numpy()
        writer = SegmentWriter(
            Path(pieces), width=geometry.width, height=geometry.height, clip_lengths=geometry.clip_frames, audio=sound
        )
        clips = video.clips(unpatchify(latents.video, geometry))
        remux(writer.header, [writer.write(clip.numpy()).path for clip in clips], out)
    return out


def _require_folder_of(out: Path) -> None:
    """Told before the work, and not after it."""
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is no folder: make it first")


def _read_geometry(path: Path) -> Geometry:
    """Of the video whose latents a file holds."""
    header = read_header(path)
    try:
        _, frames, height, width = header.tensors["video"].form.shape
    except (KeyError, ValueError) as exc:
        raise CheckpointError(f"{path} holds no latents `video` of [channels, frames, height, width]") from exc
    return Geometry.of_latents(frames, height, width)
