"""H3Runner: a render request in, worker items out. Beside `denoise_fleet`, the only file of `h3` that knows the worker.

Rank 0 encodes text and keyframes for all; every rank denoises in lockstep, and they share the clips to decode; rank 0
alone makes the sound, writes files and speaks.
"""

import hashlib
import json
import logging
import struct
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from PIL import Image

from h3.attention import AttentionName, find_installed, require_installed
from h3.checkpoint import DenoiserFiles
from h3.collectives import share_from_first
from h3.conditioning import Conditioning, encode
from h3.device import synchronize
from h3.errors import H3Error, ResumeRefused
from h3.model_folder import ModelFolder
from h3.mp4 import SegmentWriter, remux
from h3.parallel.mode import Mode, check_mode
from h3.part_sizes import place
from h3.placement import Part, Phase, Stay, find_gpu_bytes
from h3.precision import Precision
from h3.provenance import Provenance, sha256
from h3.resume import Cadence, TakenUp, is_due, load_progress, save_progress
from h3.sampler import Latents, Noise, draw_noise, make_schedule
from h3.sequence import AUDIO_RATE_HZ, FPS, Anchor, Geometry, Layout, unpatchify
from jobs.request import ResolvedRequest
from worker.collector import uncollected_imports
from worker.items import (
    FIRST_FRAME,
    LAST_FRAME,
    Abilities,
    Checkpoint,
    Finished,
    Item,
    Preview,
    Resume,
    Segment,
    StepDone,
    StreamHeader,
    TextEncoded,
)
from worker.mgpu import MGPURunner, RunnerError

if TYPE_CHECKING:
    from h3.load import LoadedModel

AUTO = "auto"  # of a request's mode, precision and attention: whatever the worker has
TEXT_TOKENS = 300  # of a prompt of some length, before it is encoded
PREVIEW_SIDE = 256  # pixels, the longer one
REPORT_VERSION = 1

log = logging.getLogger(__name__)


class H3Runner(MGPURunner):
    """Renders text, and keyframes, to video and sound."""

    _model: "LoadedModel"
    _identity: str  # of the job that runs

    @classmethod
    def preflight(
        cls,
        world_size: int,
        *,
        checkpoint: str,
        mode: str = Mode.ULYSSES,
        precision: str | None = None,
        attention: str = AttentionName.AUTO,
    ) -> None:
        """Check, before a rank is started, the checkpoint's files, and that every rank has a share and the memory.

        Raises RunnerError naming file and tensor, or the numbers.
        """
        try:
            folder, weights = open_weights(checkpoint, precision)
            check_mode(Mode(mode), folder.check(weights), weights, world_size)
            place(folder, Mode(mode), world_size, weights)
            require_installed(AttentionName.parse(attention), on_gpus=find_gpu_bytes() is not None)
        except H3Error as exc:
            raise RunnerError(str(exc)) from exc

    @classmethod
    def abilities(
        cls,
        world_size: int,
        *,
        checkpoint: str,
        mode: str = Mode.ULYSSES,
        precision: str | None = None,
        attention: str = AttentionName.AUTO,
    ) -> Abilities:
        """What can be rendered with this checkpoint on this machine.

        Every attention that is installed: `attention` decides only for requests that leave it open.
        """
        folder, weights = open_weights(checkpoint, precision)
        return Abilities(
            model_digest=folder.digest(),
            modes=(mode,),
            precisions=(weights,),
            most_pixels=place(folder, Mode(mode), world_size, weights).most_pixels,
            attentions=find_installed(on_gpus=find_gpu_bytes() is not None),
        )

    @classmethod
    def describe_placement(
        cls,
        world_size: int,
        *,
        checkpoint: str,
        mode: str = Mode.ULYSSES,
        precision: str | None = None,
        attention: str = AttentionName.AUTO,
    ) -> list[str]:
        """Where each part of the model would stay, for people."""
        folder, weights = open_weights(checkpoint, precision)
        return list(place(folder, Mode(mode), world_size, weights).lines())

    @torch.inference_mode()
    def setup(
        self,
        *,
        checkpoint: str,
        mode: str = Mode.ULYSSES,
        precision: str | None = None,
        attention: str = AttentionName.AUTO,
    ) -> None:
        """Load the model, whose root is `checkpoint`, to be shared as `mode` says.

        precision  of the denoiser's weights; None: as they are stored
        """
        # Here and not above: diffusers and transformers take seconds to import, and the process that owns the
        # controller imports this file too. With the collector off they take a quarter less time.
        with uncollected_imports():
            from h3.load import load_model
        self._model = load_model(
            Path(checkpoint),
            Mode(mode),
            self.device,
            self.groups.transformer_group,
            AttentionName.parse(attention),
            None if precision is None else Precision.parse(precision),
        )

    @torch.inference_mode()
    def __call__(self, *, request: ResolvedRequest, work_dir: str, resume: Resume | None = None) -> Iterator[Item]:
        """Render one request; files go to `work_dir`. Ends early, without Finished, when asked to stop.

        Goes on from `resume` if that is of this request, model and precision; else begins anew.
        """
        self._require_what_is_asked(request)
        folder = Path(work_dir)
        timings = Timings()
        geometry = Geometry(request.width, request.height, request.frames)
        self._take_attention(request, geometry)
        self._identity = identify(request, find_pictures(request, folder))
        taken = self._take_up(request, resume)
        timings.begin_s = self._lap(timings)

        latents = taken.latents
        if latents is None or taken.step < request.steps:
            latents = yield from self._denoise(request, geometry, taken, folder, timings)
        if latents is not None:
            yield from self._decode(request, latents, geometry, taken, folder, timings)

    def _require_what_is_asked(self, request: ResolvedRequest) -> None:
        """Every rank refuses what it would do otherwise."""
        denoiser = self._model.denoiser
        offered = {"mode": denoiser.mode, "precision": denoiser.weights}
        for name, here in offered.items():
            if (asked := getattr(request, name)) not in (AUTO, here):
                raise RunnerError(
                    f"{name} {asked} is asked for, and this worker has {here}: ask for that, or for {AUTO}"
                )

    def _take_attention(self, request: ResolvedRequest, geometry: Geometry) -> None:
        """Run on what the request asks for, or on the best. Before all else: a checkpoint is compared with it."""
        attention, most = self._model.denoiser.attention, self._model.placement.most_tokens
        tokens = Layout(geometry, TEXT_TOKENS).tokens
        if most is not None:
            tokens = min(tokens, most)
        try:
            asked = AttentionName.parse(request.attention)
            if attention.must_measure(asked, tokens):
                self._model.enter(Phase.DENOISE)  # there is room for it
            attention.take(asked, tokens)
        except H3Error as exc:
            raise RunnerError(f"{exc}; ask for {AUTO}, or wait for a worker that has it") from exc

    def _take_up(self, request: ResolvedRequest, resume: Resume | None) -> TakenUp:
        """What can be used of what earlier attempts have done. Every rank reads the same file, so all decide alike."""
        if resume is None or resume.checkpoint is None:
            return TakenUp()
        try:
            progress = load_progress(resume.checkpoint)
            across = progress.crossed(self._identity, self._provenance())
        except ResumeRefused as exc:
            log.warning("beginning anew: %s", exc)
            return TakenUp()
        stream = resume.stream if progress.step == request.steps else ()
        return TakenUp(progress.step, progress.latents.to(self.device), across, stream)

    def _denoise(
        self, request: ResolvedRequest, geometry: Geometry, taken: TakenUp, folder: Path, timings: "Timings"
    ) -> Generator[Item, None, Latents | None]:
        """All steps that are left, on every rank.

        Returns the final latents, or None when asked to stop; then a checkpoint holds all steps that are done.
        """
        conditioning = self._condition(request, geometry, folder)
        timings.text_s = self._lap(timings)
        if self.rank == 0:
            yield TextEncoded(tokens=len(conditioning.states), seconds=timings.text_s)

        noise = self._draw_noise(request, geometry, len(conditioning.keyframes))
        schedule = make_schedule(request.steps)
        self._model.enter(Phase.PREPARE)
        denoising = conditioning.begin(self._model.denoiser.model, geometry, schedule, noise, self.device)
        # A schedule too long to be kept is modulated step by step.
        self._model.enter(Phase.DENOISE, *([] if denoising.modulation.kept else [Phase.PREPARE]))
        latents = noise.latents.to(self.device) if taken.latents is None else taken.latents
        cadence = Cadence(request.checkpoint_every, schedule.steps, taken.step, time.monotonic())
        timings.prepare_s = self._lap(timings)
        for step in range(taken.step + 1, schedule.steps + 1):
            if self.stop_requested():
                if self.rank == 0 and cadence.step < step - 1:
                    yield self._checkpoint(request, step - 1, latents, folder)
                return None
            clean, latents = denoising.step(step - 1, latents)
            timings.step_s.append(self._lap(timings))
            # A rank that has left out a collective would hang in the next one, and rank 0 publish what came of it.
            self.confirm_alike(struct.pack("<qq", step, latents.checksum()))
            if self.rank == 0:
                sigma = schedule.video[step - 1].item()
                yield StepDone(step, schedule.steps, sigma, timings.step_s[-1])
                if is_due(step, request.preview_every):
                    yield self._preview(step, clean, geometry, folder)
                if cadence.is_due(step, time.monotonic()):
                    yield self._checkpoint(request, step, latents, folder)
                timings.aside_s += self._lap(timings)
        return latents

    def _condition(self, request: ResolvedRequest, geometry: Geometry, folder: Path) -> Conditioning:
        """Encoded on rank 0, for all. Every rank refuses what rank 0 refuses."""
        self._model.enter(Phase.ENCODE)
        encoded = None if self._model.first is None else self._encode(request, geometry, folder)
        outcome = cast("Conditioning | str", share_from_first(encoded, self.groups.text_group, self.device))
        if isinstance(outcome, str):
            raise RunnerError(outcome)
        tokens, most = outcome.layout(geometry).tokens, self._model.placement.most_tokens
        if most is not None and tokens > most:
            raise RunnerError(f"the render has {tokens} tokens, and this worker has memory for {most}: make it smaller")
        return outcome

    def _encode(self, request: ResolvedRequest, geometry: Geometry, folder: Path) -> Conditioning | str:
        """On rank 0. A text is why the request is refused."""
        assert self._model.first is not None
        pictures = find_pictures(request, folder)
        try:
            return encode(request.prompt, pictures, geometry, self._model.first.text, self._model.first.video)
        except H3Error as exc:
            told = str(exc)
            for anchor, path in pictures.items():  # a client knows the picture by its key
                told = told.replace(str(path), getattr(request, f"{anchor}_frame"))
            return told

    def _draw_noise(self, request: ResolvedRequest, geometry: Geometry, keyframes: int) -> Noise:
        config = self._model.denoiser.model.config
        return draw_noise(geometry, config.in_channels, config.audio_in_channels, request.seed, keyframes)

    def _preview(self, step: int, clean: Latents, geometry: Geometry, folder: Path) -> Preview:
        picture = self._model.video.picture(unpatchify(clean.video, geometry), PREVIEW_SIDE)
        path = folder / f"preview-{step:04d}.png"
        Image.fromarray(picture.numpy()).save(path)
        return Preview(step, path)

    def _checkpoint(self, request: ResolvedRequest, step: int, latents: Latents, folder: Path) -> Checkpoint:
        path = folder / f"checkpoint-{step:04d}.safetensors"
        save_progress(path, latents, step, request.steps, self._identity, self._provenance())
        return Checkpoint(step, path)

    def _decode(
        self,
        request: ResolvedRequest,
        latents: Latents,
        geometry: Geometry,
        taken: TakenUp,
        folder: Path,
        timings: "Timings",
    ) -> Iterator[Item]:
        """Sound at once, pictures in rounds of a clip a rank, each round handed out before the next is decoded.

        On every rank; rank 0 writes and speaks.
        """
        from h3.parallel.decode import decode_rounds  # as in `setup`

        self._model.enter(Phase.DECODE)
        writer = self._begin_stream(latents, geometry, folder)
        if writer is not None:
            timings.sound_s = self._lap_decode(timings)
            taken = taken.continued_by(writer)
        stream = list(taken.stream)
        first = share_from_first(taken.segments, self.groups.vae_group, self.device)
        if writer is not None and not stream:
            stream.append(writer.header)
            yield StreamHeader(hand_over(writer.header, folder), geometry.clips)
        video = unpatchify(latents.video, geometry)
        for clips in decode_rounds(self._model.video, video, first, self.groups.vae_group, self.stop_requested):
            for clip in clips:
                assert writer is not None  # only rank 0 gets any
                segment = writer.write(clip.numpy())
                stream.append(segment.path)
                # Its pixels were on the host: to wait for the device would be to wait for the next clip.
                timings.decode_s += timings.lap()
                timings.first_segment_s = timings.first_segment_s or timings.decode_s
                yield Segment(segment.index, hand_over(segment.path, folder), segment.duration_s)
        if writer is not None and len(stream) > geometry.clips:  # else it was asked to stop
            path = folder / "video.mp4"
            remux(stream[0], stream[1:], path)
            self._lap_decode(timings)
            report = folder / "report.json"
            report.write_text(json.dumps(self._report(request, latents, taken, timings), indent=2))
            yield Finished(path, report)

    def _begin_stream(self, latents: Latents, geometry: Geometry, folder: Path) -> SegmentWriter | None:
        """On rank 0, with the sound in it already."""
        if self._model.first is None:
            return None
        pieces = folder / "pieces"
        pieces.mkdir()
        return SegmentWriter(
            pieces,
            width=geometry.width,
            height=geometry.height,
            clip_lengths=geometry.clip_frames,
            audio=self._model.first.audio.decode(latents.audio).numpy(),
        )

    def _report(
        self, request: ResolvedRequest, latents: Latents, taken: TakenUp, timings: "Timings"
    ) -> dict[str, object]:
        return {
            "version": REPORT_VERSION,
            "request": request.model_dump(),
            "provenance": asdict(self._provenance()),
            "resumed": taken.report(),
            "timings": timings.report(),
            "fps": FPS,
            "audio_rate_hz": AUDIO_RATE_HZ,
            "latents_sha256": {"video": sha256(latents.video), "audio": sha256(latents.audio)},
        }

    def _provenance(self) -> Provenance:
        text_device = "cpu" if self._model.placement.stays[Part.TEXT_ENCODER] is Stay.HOST else self.device.type
        return self._model.denoiser.provenance(self.device, text_device=text_device)

    def _lap(self, timings: "Timings") -> float:
        """Seconds of finished work since the last lap."""
        synchronize(self.device)
        return timings.lap()

    def _lap_decode(self, timings: "Timings") -> float:
        """Seconds since decoding began."""
        timings.decode_s += self._lap(timings)
        return timings.decode_s


@dataclass(slots=True)
class Timings:
    """Seconds of each phase on rank 0, one after the other."""

    begin_s: float = 0.0  # until it is known what is computed, and how
    text_s: float = 0.0  # keyframes, too
    prepare_s: float = 0.0  # what is computed once for all steps
    step_s: list[float] = field(default_factory=list)
    aside_s: float = 0.0  # previews and checkpoints, between the steps
    sound_s: float = 0.0  # of decode_s, which begins with it
    first_segment_s: float = 0.0  # of decode_s, until there is one; 0: an earlier attempt has made all
    decode_s: float = 0.0  # files and their joining included
    _since: float = field(default_factory=time.perf_counter)

    def lap(self) -> float:
        now = time.perf_counter()
        self._since, seconds = now, now - self._since
        return seconds

    def report(self) -> dict[str, object]:
        return {name: seconds for name, seconds in asdict(self).items() if not name.startswith("_")}


def open_weights(checkpoint: str, precision: str | None) -> tuple[ModelFolder, Precision]:
    """The model's folder, and what its denoiser's weights are in once they are loaded. Raises CheckpointError."""
    folder = ModelFolder.below(Path(checkpoint))
    return folder, DenoiserFiles.open(folder.transformer).precision if precision is None else Precision.parse(precision)


def identify(request: ResolvedRequest, pictures: Mapping[Anchor, Path]) -> str:
    """What the latents depend on, as a sha256: a checkpoint of one request is good for any other with the same."""
    fields = ("prompt", "width", "height", "frames", "steps", "seed")
    told: list[object] = [getattr(request, name) for name in fields]
    told += [[anchor, hashlib.sha256(path.read_bytes()).hexdigest()] for anchor, path in sorted(pictures.items())]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def find_pictures(request: ResolvedRequest, folder: Path) -> dict[Anchor, Path]:
    """The keyframes' files, which the worker has put into the work folder."""
    named = {Anchor.FIRST: (request.first_frame, FIRST_FRAME), Anchor.LAST: (request.last_frame, LAST_FRAME)}
    return {anchor: folder / name for anchor, (key, name) in named.items() if key is not None}


def hand_over(path: Path, folder: Path) -> Path:
    """A second name for a file: the worker deletes what it is given, and the writer needs its own until the end."""
    target = folder / path.name
    target.hardlink_to(path)
    return target
