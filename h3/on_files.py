"""The phases of a render as commands on files: encode, denoise, decode. For research and tests; knows no queue."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from h3.conditioning import encode
from h3.denoise_fleet import Denoised, DenoiseRequest, Outcome, Ranks, StepTaken, check, running_ranks
from h3.errors import CheckpointError, ConfigError
from h3.latents_file import read_latents, write_latents
from h3.model_folder import ModelFolder
from h3.mp4 import SegmentWriter, remux
from h3.provenance import sha256
from h3.sequence import Anchor, Geometry, unpatchify
from h3.tensor_file import read_header
from h3.untrained import Untrained

REPORT_VERSION = 2


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
