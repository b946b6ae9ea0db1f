"""Loads every part of the model that one rank needs."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from h3.checkpoint import ModelFolder, load_denoiser
from h3.model import Denoiser
from h3.parallel.ulysses import shard_tokens
from h3.text import TextEncoder, load_text_encoder
from h3.vae import AudioDecoder, VideoDecoder, load_audio_decoder, load_video_decoder


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that a rank holds in memory between jobs."""

    digest: str  # of the whole model
    text: TextEncoder
    denoiser: Denoiser
    video: VideoDecoder
    audio: AudioDecoder


def load_model(root: Path, device: torch.device, group: dist.ProcessGroup) -> LoadedModel:
    """Load all parts and spread the denoiser over `group`. Raises CheckpointError, PartitionError."""
    folder = ModelFolder.below(root)
    folder.check()
    denoiser = load_denoiser(folder.transformer, device)
    if dist.get_world_size(group) > 1:
        shard_tokens(denoiser, group)
    return LoadedModel(
        digest=folder.digest(),
        text=load_text_encoder(folder.text_encoder, folder.tokenizer, device),
        denoiser=denoiser,
        video=load_video_decoder(folder.video_vae, device),
        audio=load_audio_decoder(folder.audio_vae, device),
    )
