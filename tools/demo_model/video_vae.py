"""The video autoencoder: the official class with few channels, trained first whole, then its decoder alone.

Whole, on windows of 22 frames of small pictures, because the encoder works on every pixel and is most of the cost; it
is convolutional, so it fits any size. The decoder knows where a latent lies within its window, so it is trained on at
the true size, on latents that the finished encoder has made.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from diffusers import AutoencoderKLMiniMaxH3
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch import Tensor

from h3.sequence import CLIP_FRAMES, CLIP_LATENTS, TAIL_FRAMES, Geometry
from h3.vae_files import is_kept_in_fp32
from tools.demo_model.clips import Clips, draw, sample_clips
from tools.demo_model.scenes import Scene
from tools.demo_model.trainer import Plan, Trainer

LATENT_CHANNELS = 16
CLOSE, SMALL = Geometry(96, 96, 39), Geometry(128, 128, 39)
KL_WEIGHT = 2e-4
LOG_VARIANCE = -4.0  # of the posterior, at first
PRE_PADDING = 3  # frames before a decoded clip that nobody sees
LATENTS_PER_WINDOW = CLIP_LATENTS + 2
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, the space that the class speaks


def build_video_vae(device: torch.device, dtype: torch.dtype) -> AutoencoderKLMiniMaxH3:
    """Untrained. Encoder and linear layers in `dtype`, the rest fp32."""
    vae = AutoencoderKLMiniMaxH3(
        latent_channels=LATENT_CHANNELS,
        block_out_channels=(32, 32, 32, 32, 96),
        layers_per_block=1,
        spatial_downsample_factors=(2, 2, 2, 2, 1),
        temporal_downsample_factors=(1, 2, 2, 1, 1),
        decoder_num_layers=3,
        decoder_num_attention_heads=2,
        decoder_attention_head_dim=72,
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )
    with torch.no_grad():
        # Nearly without noise at first: under noise of deviation 1 only the mean colour of a block comes through.
        vae.quant_conv.weight[LATENT_CHANNELS:].zero_()
        vae.quant_conv.bias[LATENT_CHANNELS:].fill_(LOG_VARIANCE)
        vae.decoder.register_tokens.normal_(std=0.02)
        for block in vae.decoder.transformer_blocks:
            block.scale1.fill_(0.5)
            block.scale2.fill_(0.5)
    for name, parameter in vae.named_parameters():
        if name.startswith(("encoder.", "quant_conv.")) or not is_kept_in_fp32(name):
            parameter.data = parameter.data.to(dtype)
    return vae.to(device)


def normalise(pictures: Tensor) -> Tensor:
    """[N, 3, F, H, W] in 0..1 to the class's space."""
    mean, std = (torch.tensor(values, device=pictures.device)[:, None, None, None] for values in (_MEAN, _STD))
    return (pictures - mean) / std


def encode_clip(vae: AutoencoderKLMiniMaxH3, pictures: Tensor) -> DiagonalGaussianDistribution:
    """At most 17 normalised frames, which are the start of a clip."""
    moments = vae.quant_conv(vae.encoder(pictures.to(vae.quant_conv.weight.dtype)))
    return DiagonalGaussianDistribution(moments.float())


def decode_window(vae: AutoencoderKLMiniMaxH3, latents: Tensor) -> Tensor:
    """Seven latents to the 22 frames that are seen of them."""
    frames = vae.decoder(vae.post_quant_conv(latents.to(vae.post_quant_conv.weight.dtype))).float()
    clip = PRE_PADDING + CLIP_FRAMES
    return torch.cat([frames[:, :, PRE_PADDING:clip], frames[:, :, -TAIL_FRAMES:]], dim=2)


def train_whole(
    vae: AutoencoderKLMiniMaxH3, scenes: Sequence[Scene], plan: Plan, batch: int, file: Path, deadline: float
) -> bool:
    """Both halves together, on small pictures. Returns whether it is done.

    Every other two windows are close, where the shape fills much of the picture: from afar nearly all of the error is
    background, and the decoder long gives each block its mean colour alone.
    """
    trainer = Trainer(vae, plan, file)
    device = next(vae.parameters()).device
    views = [sample_clips(scenes, size, seed=1, close=size is CLOSE).to(device) for size in (CLOSE, SMALL)]

    def losses(step: int) -> list[Tensor]:
        clips = views[step // 2 % 2]
        chosen = clips.rows(_choose(len(clips), batch, step).to(device))
        pictures = normalise(draw(chosen, _window_frames(step % 2)))
        halves = [encode_clip(vae, part) for part in pictures.split([CLIP_FRAMES, TAIL_FRAMES], dim=2)]
        latents = torch.cat([half.sample() for half in halves], dim=2)
        kl = torch.cat([_kl(half) for half in halves], dim=2).mean() * KL_WEIGHT
        return [*_errors(decode_window(vae, latents), pictures), kl]

    done = trainer.run(losses, deadline)
    trainer.take_mean()
    return done


def train_decoder(
    vae: AutoencoderKLMiniMaxH3,
    clips: Clips,
    latents: Tensor,
    noise: Tensor,
    plan: Plan,
    batch: int,
    file: Path,
    deadline: float,
) -> bool:
    """The decoder on finished latents of whole clips, [N, C, 12, h, w], with the encoder's noise [C] added."""
    decoder = torch.nn.ModuleList([vae.post_quant_conv, vae.decoder])
    trainer = Trainer(decoder, plan, file)

    def losses(step: int) -> list[Tensor]:
        rows = _choose(len(clips), batch, step).to(latents.device)
        window = step % clips.geometry.clips
        first = window * CLIP_LATENTS
        chosen = latents[rows, :, first : first + LATENTS_PER_WINDOW].float()
        chosen = chosen + torch.randn_like(chosen) * noise[:, None, None, None]
        pictures = normalise(draw(clips.rows(rows), _window_frames(window)))
        return _errors(decode_window(vae, chosen), pictures)

    done = trainer.run(losses, deadline)
    trainer.take_mean()
    return done


@torch.no_grad()
def encode_all(vae: AutoencoderKLMiniMaxH3, clips: Clips, batch: int) -> tuple[Tensor, Tensor]:
    """Posterior means of whole clips, [N, C, 12, h, w] in bf16, and how far samples lie from them, [C]."""
    means, spreads = [], []
    edges = [*range(0, clips.geometry.frames, CLIP_FRAMES), clips.geometry.frames]
    for start in range(0, len(clips), batch):
        chosen = clips.rows(slice(start, start + batch))
        parts = [encode_clip(vae, normalise(draw(chosen, range(first, last)))) for first, last in pairwise(edges)]
        means.append(torch.cat([part.mean for part in parts], dim=2).bfloat16())
        spreads.append(torch.cat([part.std for part in parts], dim=2).square().mean(dim=(0, 2, 3, 4)))
    return torch.cat(means), torch.stack(spreads).mean(0).sqrt()


def _choose(count: int, batch: int, step: int) -> Tensor:
    return torch.randint(count, (batch,), generator=torch.Generator().manual_seed(step))


def _window_frames(window: int) -> range:
    return range(window * CLIP_FRAMES, window * CLIP_FRAMES + CLIP_FRAMES + TAIL_FRAMES)


def _errors(decoded: Tensor, wanted: Tensor) -> list[Tensor]:
    """Squared, and absolute for sharp edges."""
    difference = decoded - wanted
    return [difference.square().mean(), 0.5 * difference.abs().mean()]


def _kl(posterior: DiagonalGaussianDistribution) -> Tensor:
    return 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar)
