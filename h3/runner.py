"""H3Runner: a render request in, worker items out. The only file of `h3` that knows worker and jobs.

Every rank encodes the text and denoises in lockstep; rank 0 alone decodes, writes files and speaks.
"""

import hashlib
import json
import logging
import struct
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image

from h3.checkpoint import ModelFolder
from h3.config import DenoiserConfig
from h3.denoise import Denoising
from h3.errors import H3Error, ResumeRefused
from h3.memory import find_gpu_bytes, predict_most_pixels
from h3.mp4 import SegmentWriter, remux
from h3.partition import split_evenly
from h3.provenance import Provenance, describe_device, sha256
from h3.resume import load_progress, save_progress
from h3.sampler import Latents, initial_noise, make_schedule
from h3.sequence import AUDIO_RATE_HZ, FPS, Geometry, Layout, unpatchify
from jobs.request import ResolvedRequest
from worker.items import (
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

MODE = "ulysses"
PRECISION = "bf16"
ATTENTION_BACKEND = "sdpa"
CHECKPOINT_AFTER_S = 60.0  # at least so often, whatever number of steps that is
PREVIEW_SIDE = 256  # pixels, the longer one
REPORT_VERSION = 1

log = logging.getLogger(__name__)


class H3Runner(MGPURunner):
    """Renders text to video and sound."""

    _model: "LoadedModel"

    @classmethod
    def preflight(cls, world_size: int, *, checkpoint: str) -> None:
        """Check the checkpoint's files, and that every rank gets a head, before any rank is started.

        Raises RunnerError naming file and tensor, or the numbers.
        """
        try:
            config = ModelFolder.below(Path(checkpoint)).check()
            split_evenly(config.num_attention_heads, world_size, what="attention heads")
        except H3Error as exc:
            raise RunnerError(str(exc)) from exc

    @classmethod
    def abilities(cls, world_size: int, *, checkpoint: str) -> Abilities:
        """What can be rendered with this checkpoint on this machine."""
        folder = ModelFolder.below(Path(checkpoint))
        config = DenoiserConfig.from_file(folder.transformer / "config.json")
        return Abilities(
            model_digest=folder.digest(),
            modes=(MODE,),
            precisions=(PRECISION,),
            most_pixels=predict_most_pixels(config, folder.size_bytes(), find_gpu_bytes(), world_size),
        )

    @torch.inference_mode()
    def setup(self, *, checkpoint: str) -> None:
        """Load the model; `checkpoint` is the root of the official layout."""
        # Here and not above: diffusers and transformers take seconds to import, and the process that owns the
        # controller imports this file too.
        from h3.load import load_model

        self._model = load_model(Path(checkpoint), self.device, self.groups.transformer_group)

    @torch.inference_mode()
    def __call__(self, *, request: ResolvedRequest, work_dir: str, resume: Resume | None = None) -> Iterator[Item]:
        """Render one request; files go to `work_dir`. Ends early, without Finished, when asked to stop.

        Goes on from `resume` if that is of this request, model and precision; else begins anew.
        """
        folder = Path(work_dir)
        timings = Timings()
        geometry = Geometry(request.width, request.height, request.frames)
        taken = self._take_up(request, resume)

        latents = taken.latents
        if latents is None or taken.step < request.steps:
            latents = yield from self._denoise(request, geometry, taken, folder, timings)
        if latents is not None and self.rank == 0:
            yield from self._decode(request, latents, geometry, taken, folder, timings)

    def _take_up(self, request: ResolvedRequest, resume: Resume | None) -> "TakenUp":
        """What can be used of what earlier attempts have done. Every rank reads the same file, so all decide alike."""
        if resume is None or resume.checkpoint is None:
            return TakenUp()
        try:
            progress = load_progress(resume.checkpoint)
            across = progress.crossed(identify(request), self._provenance())
        except ResumeRefused as exc:
            log.warning("beginning anew: %s", exc)
            return TakenUp()
        stream = resume.stream if progress.step == request.steps else ()
        return TakenUp(progress.step, progress.latents.to(self.device), across, stream)

    def _denoise(
        self, request: ResolvedRequest, geometry: Geometry, taken: "TakenUp", folder: Path, timings: "Timings"
    ) -> Generator[Item, None, Latents | None]:
        """All steps that are left, on every rank.

        Returns the final latents, or None when asked to stop; then a checkpoint holds all steps that are done.
        """
        ids = self._model.text.tokenize(request.prompt)
        states = self._model.text.encode(ids)
        timings.text_s = self._lap(timings)
        if self.rank == 0:
            yield TextEncoded(tokens=len(ids), seconds=timings.text_s)

        schedule = make_schedule(request.steps)
        denoising = Denoising.begin(self._model.denoiser, states, Layout(geometry, len(ids)), schedule)
        latents = self._draw_noise(request, geometry) if taken.latents is None else taken.latents
        cadence = Cadence(request.checkpoint_every, schedule.steps, taken.step, time.monotonic())
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
                self._lap(timings)  # previews and checkpoints are no part of a step
        return latents

    def _draw_noise(self, request: ResolvedRequest, geometry: Geometry) -> Latents:
        config = self._model.denoiser.config
        noise = initial_noise(geometry, config.in_channels, config.audio_in_channels, request.seed)
        return noise.to(self.device)

    def _preview(self, step: int, clean: Latents, geometry: Geometry, folder: Path) -> Preview:
        picture = self._model.video.picture(unpatchify(clean.video, geometry), PREVIEW_SIDE)
        path = folder / f"preview-{step:04d}.png"
        Image.fromarray(picture.numpy()).save(path)
        return Preview(step, path)

    def _checkpoint(self, request: ResolvedRequest, step: int, latents: Latents, folder: Path) -> Checkpoint:
        path = folder / f"checkpoint-{step:04d}.safetensors"
        save_progress(path, latents, step, request.steps, identify(request), self._provenance())
        return Checkpoint(step, path)

    def _decode(
        self,
        request: ResolvedRequest,
        latents: Latents,
        geometry: Geometry,
        taken: "TakenUp",
        folder: Path,
        timings: "Timings",
    ) -> Iterator[Item]:
        """Sound at once, pictures clip by clip, each clip handed out before the next is decoded."""
        pieces = folder / "pieces"
        pieces.mkdir()
        writer = SegmentWriter(
            pieces,
            width=geometry.width,
            height=geometry.height,
            clip_lengths=geometry.clip_frames,
            audio=self._model.audio.decode(latents.audio).numpy(),
        )
        taken = taken.continued_by(writer)
        stream = list(taken.stream) or [writer.header]
        if not taken.stream:
            yield StreamHeader(hand_over(writer.header, folder), geometry.clips)
        for clip in self._model.video.clips(unpatchify(latents.video, geometry), taken.segments):
            segment = writer.write(clip.numpy())
            stream.append(segment.path)
            yield Segment(segment.index, hand_over(segment.path, folder), segment.duration_s)
            is_last = segment.index + 1 == geometry.clips
            if not is_last and self.stop_pending():  # the other ranks have ended their part
                return
        video = folder / "video.mp4"
        remux(stream[0], stream[1:], video)
        timings.decode_s = self._lap(timings)
        report = folder / "report.json"
        report.write_text(json.dumps(self._report(request, latents, taken, timings), indent=2))
        yield Finished(video, report)

    def _report(
        self, request: ResolvedRequest, latents: Latents, taken: "TakenUp", timings: "Timings"
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
        return Provenance(
            model_digest=self._model.digest,
            precision=PRECISION,
            mode=MODE,
            world_size=self.world_size,
            attention_backend=ATTENTION_BACKEND,
            torch=torch.__version__,
            device=describe_device(self.device),
        )

    def _lap(self, timings: "Timings") -> float:
        """Seconds of finished work since the last lap."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return timings.lap()


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
class Timings:
    """Seconds of each phase on rank 0."""

    text_s: float = 0.0
    step_s: list[float] = field(default_factory=list)
    decode_s: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    def lap(self) -> float:
        now = time.perf_counter()
        self._since, seconds = now, now - self._since
        return seconds

    def report(self) -> dict[str, object]:
        return {"text_s": self.text_s, "step_s": self.step_s, "decode_s": self.decode_s}


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


def identify(request: ResolvedRequest) -> str:
    """What the latents depend on, as a sha256: a checkpoint of one request is good for any other with the same."""
    fields = ("prompt", "width", "height", "frames", "steps", "seed")
    return hashlib.sha256(json.dumps([getattr(request, name) for name in fields]).encode()).hexdigest()


def is_due(step: int, every: int) -> bool:
    """Whether something done `every` so many steps (0 = never) is due after this one."""
    return every > 0 and step % every == 0


def hand_over(path: Path, folder: Path) -> Path:
    """A second name for a file: the worker deletes what it is given, and the writer needs its own until the end."""
    target = folder / path.name
    target.hardlink_to(path)
    return target
