"""The video autoencoder: the official class with few channels. Its encoder is set, its decoder trained.

The decoder knows where a latent lies within its window, so it is trained at the true size, on latents of whole clips.
"""

import math
from itertools import pairwise
from pathlib import Path

import torch
from diffusers import AutoencoderKLMiniMaxH3
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch import Tensor

from h3.sequence import CLIP_FRAMES, CLIP_LATENTS, TAIL_FRAMES
from h3.vae_files import is_kept_in_fp32
from tools.demo_model import moments
from tools.demo_model.clips import Clips, draw
from tools.demo_model.trainer import Plan, Trainer

LATENT_CHANNELS = moments.CHANNELS
PRE_PADDING = 3  # frames before a decoded clip that nobody sees
LATENTS_PER_WINDOW = CLIP_LATENTS + 2
FITTED_CLIPS, FITTED_AT_ONCE = 64, 8  # from which the decoder's first map is
LEVEL = 20.0  # of two channels beside which the others hardly count: so a norm scales by nearly a constant
SLIPS = 0.3  # of a latent's deviation, at most: so far off may a denoiser be, and the decoder learns to draw over it
BRANCH, UNUSED = 0.1, 0.3  # of what the blocks add, and of what the map leaves unused, at first
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, the space that the class speaks


def build_video_vae(device: torch.device, dtype: torch.dtype) -> AutoencoderKLMiniMaxH3:
    """Its decoder is untrained, and linear layers there in `dtype`; the rest is fp32."""
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
    moments.set_encoder(vae)
    for name, parameter in vae.named_parameters():
        if not is_kept_in_fp32(name):
            parameter.data = parameter.data.to(dtype)
    return vae.to(device)


def normalise(pictures: Tensor) -> Tensor:
    """[N, 3, F, H, W] in 0..1 to the class's space."""
    mean, std = (torch.tensor(values, device=pictures.device)[:, None, None, None] for values in (_MEAN, _STD))
    return (pictures - mean) / std


def encode_clip(vae: AutoencoderKLMiniMaxH3, pictures: Tensor) -> DiagonalGaussianDistribution:
    """At most 17 normalised frames, which are the start of a clip."""
    return DiagonalGaussianDistribution(vae.quant_conv(vae.encoder(pictures)))


def decode_window(vae: AutoencoderKLMiniMaxH3, latents: Tensor) -> Tensor:
    """Seven latents to the 22 frames that are seen of them."""
    frames = vae.decoder(vae.post_quant_conv(latents.to(vae.post_quant_conv.weight.dtype))).float()
    clip = PRE_PADDING + CLIP_FRAMES
    return torch.cat([frames[:, :, PRE_PADDING:clip], frames[:, :, -TAIL_FRAMES:]], dim=2)


@torch.no_grad()
def begin_linear(vae: AutoencoderKLMiniMaxH3, clips: Clips, latents: Tensor) -> None:
    """Let the decoder begin as the best linear map of each latent to its four frames; edges and motion it has to learn.

    From nothing it needs twice as many steps until it looks at the latents around one. latents [N, C, 12, h, w]
    """
    decoder, channels = vae.decoder, latents.shape[1]
    fitted = _fit(clips, latents, decoder.patch_size_t, decoder.patch_size).T  # [patch, C + 1]
    vae.post_quant_conv.weight.copy_(torch.eye(channels)[..., None, None, None])
    vae.post_quant_conv.bias.zero_()
    level = 2 * channels  # of two rows, behind a latent's values and their negatives
    decoder.register_tokens.normal_(std=0.02)
    decoder.proj_in.weight.mul_(UNUSED)[: level + 2].zero_()
    decoder.proj_in.bias.zero_()[level : level + 2].copy_(torch.tensor([LEVEL, -LEVEL]))
    decoder.proj_out.weight.mul_(UNUSED)[:, : level + 2].zero_()
    decoder.proj_out.bias.copy_(fitted[:, channels])
    deviation = LEVEL * math.sqrt(2 / len(decoder.proj_in.weight))  # by which the last norm divides
    for channel in range(channels):
        for sign, row in ((1, 2 * channel), (-1, 2 * channel + 1)):
            decoder.proj_in.weight[row, channel] = sign
            decoder.proj_out.weight[:, row] = sign * fitted[:, channel] * deviation / 2
    for block in decoder.transformer_blocks:
        block.scale1.fill_(BRANCH)
        block.scale2.fill_(BRANCH)


def _fit(clips: Clips, latents: Tensor, frames: int, side: int) -> Tensor:
    """By least squares, from a latent and 1 to its frames, as the decoder's last layer has them: [C + 1, patch]."""
    squares = products = torch.zeros((), device=latents.device)
    for start in range(0, min(FITTED_CLIPS, len(clips)), FITTED_AT_ONCE):
        rows = slice(start, start + FITTED_AT_ONCE)
        pictures = normalise(draw(clips.rows(rows), range(1, CLIP_FRAMES)))  # the first latent has but one frame
        blocks = pictures.unflatten(2, (-1, frames)).unflatten(-1, (-1, side)).unflatten(-3, (-1, side))
        patches = blocks.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(0, 3)
        known = latents[rows, :, 1:CLIP_LATENTS].float().permute(0, 2, 3, 4, 1).flatten(0, 3)
        known = torch.cat([known, torch.ones_like(known[:, :1])], dim=1)
        squares, products = squares + known.T @ known, products + known.T @ patches
    return torch.linalg.solve(squares + 1e-3 * torch.eye(len(squares), device=latents.device), products)


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
    """On latents of whole clips, [N, C, 12, h, w], with the encoder's noise [C] and SLIPS added.

    Returns whether it is done.
    """
    begin_linear(vae, clips, latents)
    deviation = latents.float().std((0, 2, 3, 4))
    decoder = torch.nn.ModuleList([vae.post_quant_conv, vae.decoder])
    trainer = Trainer(decoder, plan, file)

    def losses(step: int) -> list[Tensor]:
        rows = _choose(len(clips), batch, step).to(latents.device)
        window = step % clips.geometry.clips
        first = window * CLIP_LATENTS
        chosen = latents[rows, :, first : first + LATENTS_PER_WINDOW].float()
        slips = SLIPS * torch.rand(batch, 1, 1, 1, 1, device=latents.device) * deviation[:, None, None, None]
        chosen = chosen + torch.randn_like(chosen) * (noise[:, None, None, None].square() + slips.square()).sqrt()
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
