"""Loads what one rank needs of a model, each part where the placement has it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from h3.attention import AttentionName
from h3.checkpoint import DenoiserFiles
from h3.collectives import share_from_first
from h3.laps import Laps
from h3.model_folder import ModelFolder
from h3.parallel.loading import SpreadDenoiser, load_spread
from h3.parallel.mode import Mode
from h3.part_sizes import is_preparation, place
from h3.placement import NEEDED, Part, Phase, Placement, Stay
from h3.precision import Precision
from h3.shelf import Shelf
from h3.vae import (
    AudioDecoder,
    VideoDecoder,
    VideoEncoder,
    load_audio_decoder,
    load_video_decoder,
    load_video_encoder,
)

if TYPE_CHECKING:
    from h3.text import TextEncoder


@dataclass(frozen=True, slots=True)
class FirstRank:
    """What only rank 0 holds: it encodes for all, and makes the sound."""

    text: "TextEncoder"
    video: VideoEncoder
    audio: AudioDecoder


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that a rank holds in memory between jobs."""

    placement: Placement
    denoiser: SpreadDenoiser  # its digest is that of the whole model
    video: VideoDecoder
    first: FirstRank | None  # on rank 0
    shelves: tuple[tuple[Part, Shelf], ...]  # of the parts that are on the device only in their phases
    load_s: Mapping[str, float]  # what loading took, part by part

    def enter(self, *phases: Phase) -> None:
        """Make room, then bring what any of these phases needs."""
        for part, shelf in self.shelves:
            if NEEDED[part].isdisjoint(phases):
                shelf.put_away()
        for part, shelf in self.shelves:
            if not NEEDED[part].isdisjoint(phases):
                shelf.bring()


def load_model(
    root: Path,
    mode: Mode,
    device: torch.device,
    group: dist.ProcessGroup,
    attention: AttentionName = AttentionName.AUTO,
    precision: Precision | None = None,
) -> LoadedModel:
    """Load all parts and spread the denoiser over `group`. Collective.

    precision  of the denoiser's weights; None: as they are stored

    Raises CheckpointError, ConfigError, PartitionError, PlacementError, RanksDisagree.
    """
    laps, folder = Laps(device), ModelFolder.below(root)
    folder.check()
    world_size, is_first = dist.get_world_size(group), dist.get_rank(group) == 0
    # One rank decides: free memory is another number a moment later.
    planned = place(folder, mode, world_size, precision, on_gpus=device.type == "cuda") if is_first else None
    placement: Placement = share_from_first(planned, group, device)
    desk = Desk(placement.stays, device)
    files, digest = DenoiserFiles.open(folder.transformer), folder.digest()
    laps.end("headers")
    denoiser = load_spread(
        files, digest, mode, device, group, precision=precision, attention=attention, waits=desk.waits
    )
    names = tensor_names(denoiser.model)
    desk.shelve(Part.PREPARATION, denoiser.model, (name for name in names if is_preparation(name)))
    desk.shelve(Part.BLOCKS, denoiser.model, (name for name in names if not is_preparation(name)))
    laps.end("denoiser")
    video = load_video_decoder(folder.video_vae, desk.device_of(Part.VIDEO_DECODER))
    desk.shelve(Part.VIDEO_DECODER, video.module)
    laps.end(Part.VIDEO_DECODER)
    first = _load_first(folder, desk, laps) if is_first else None
    return LoadedModel(placement, denoiser, video, first, tuple(desk.shelves), laps.seconds)


def _load_first(folder: ModelFolder, desk: "Desk", laps: Laps) -> FirstRank:
    # Here, for only this rank needs it: transformers takes a second to import.
    from h3.text import load_text_encoder

    text = load_text_encoder(folder.text_encoder, folder.tokenizer, desk.device_of(Part.TEXT_ENCODER))
    desk.shelve(Part.TEXT_ENCODER, text.module)
    laps.end(Part.TEXT_ENCODER)
    video = load_video_encoder(folder.video_vae, desk.device_of(Part.VIDEO_ENCODER))
    desk.shelve(Part.VIDEO_ENCODER, video.module)
    laps.end(Part.VIDEO_ENCODER)
    audio = load_audio_decoder(folder.audio_vae, desk.device_of(Part.AUDIO_DECODER))
    desk.shelve(Part.AUDIO_DECODER, audio.module)
    laps.end(Part.AUDIO_DECODER)
    return FirstRank(text, video, audio)


@dataclass(frozen=True, slots=True)
class Desk:
    """Where parts go while they are loaded: those that will wait in host memory never touch the device."""

    stays: Mapping[Part, Stay]
    device: torch.device
    shelves: list[tuple[Part, Shelf]] = field(default_factory=list)

    def device_of(self, part: Part) -> torch.device:
        """To load it to."""
        return self.device if self.stays[part] is Stay.RESIDENT else torch.device("cpu")

    def waits(self, name: str) -> bool:
        """Whether a tensor of the denoiser is of a part that waits in host memory."""
        return self.stays[Part.PREPARATION if is_preparation(name) else Part.BLOCKS] is not Stay.RESIDENT

    def shelve(self, part: Part, module: nn.Module, names: Iterable[str] | None = None) -> None:
        """Take charge of a part's tensors (None: all), if it comes and goes."""
        if self.stays[part] is Stay.PHASE:
            chosen = tensor_names(module) if names is None else names
            self.shelves.append((part, Shelf(module, chosen, self.device)))


def tensor_names(module: nn.Module) -> list[str]:
    """Of its parameters and buffers."""
    return [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
