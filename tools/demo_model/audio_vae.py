"""The audio autoencoder: the official class with few channels, trained on tones, in fp32 throughout."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import AutoencoderKLMiniMaxH3Audio
from torch import Tensor, nn

from h3.sequence import Geometry
from tools.demo_model.clips import Clips, sample_clips, sound
from tools.demo_model.scenes import Scene
from tools.demo_model.trainer import Plan, Trainer

LATENT_CHANNELS = 8
KL_WEIGHT = 1e-4
WAVE_WEIGHT, SPECTRAL_WEIGHT = 20.0, 5.0
PIECE = 8  # latents that are trained on at once
LOG_NOISE = -2.0  # of the posterior, at first
RESIDUAL, LOUDNESS = 0.3, 0.2  # of a residual branch, and of the output, at first
WINDOWS = (256, 1024, 2048)  # samples, of the spectra that are compared


def build_audio_vae(device: torch.device) -> AutoencoderKLMiniMaxH3Audio:
    """Untrained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the class uses torch's old weight norm
        vae = AutoencoderKLMiniMaxH3Audio(
            encoder_dim=8,
            encoder_rates=(5, 10, 16),
            latent_dim=64,
            latent_channels=LATENT_CHANNELS,
            decoder_dim=128,
            decoder_rates=(10, 10, 8),
            decoder_kernel_sizes=(20, 20, 16),
            resblock_kernel_sizes=(3,),
            resblock_dilation_sizes=((1, 3),),
            latents_mean=[0.0] * LATENT_CHANNELS,
            latents_std=[1.0] * LATENT_CHANNELS,
        )
    return vae.to(device)


@torch.no_grad()
def balance(vae: AutoencoderKLMiniMaxH3Audio, wave: Tensor) -> None:
    """Scale each layer in turn so that what it puts out for `wave` [N, 1, S] has deviation 1, without biases.

    As torch initialises them, biases outgrow the signal more in each layer: behind the last, two sounds differ by 1e-4
    of what they have in common, and 1,000 steps of training change nothing.
    """

    def scale(layer: nn.Module, _: tuple[Tensor, ...], out: Tensor) -> Tensor:
        deviation = out.std()
        getattr(layer, "weight_g", layer.weight).div_(deviation)
        return out / deviation

    layers = [m for m in vae.modules() if isinstance(m, nn.Conv1d | nn.ConvTranspose1d)]
    for layer in layers:
        if layer.bias is not None:
            layer.bias.zero_()
    hooks = [layer.register_forward_hook(scale) for layer in layers]
    posterior = vae.encode(wave).latent_dist
    vae.decode(posterior.mean)
    for hook in hooks:
        hook.remove()
    for block in vae.decoder.resblocks:
        for conv in block.convs2:
            conv.weight_g.mul_(RESIDUAL)
    vae.decoder.conv_post.weight_g.mul_(LOUDNESS)
    vae.logs_proj.weight.zero_()
    vae.logs_proj.bias.fill_(LOG_NOISE)


class Losses(nn.Module):
    """What the autoencoder makes wrong of sounds: in the wave, in three spectra, and in how it spends its latents."""

    def __init__(self, vae: AutoencoderKLMiniMaxH3Audio) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, wave: Tensor) -> Tensor:
        """wave [N, 1, S]; returns [5]"""
        posterior = self.vae.encode(wave).latent_dist
        decoded = self.vae.decode(posterior.sample()).sample
        kl = 0.5 * (posterior.mean.square() + posterior.std.square() - 1 - 2 * posterior.logs).mean() * KL_WEIGHT
        in_wave = WAVE_WEIGHT * (decoded - wave).abs().mean()
        return torch.stack([in_wave, *_spectral_errors(decoded[:, 0], wave[:, 0]), kl])


def train(
    vae: AutoencoderKLMiniMaxH3Audio,
    scenes: Sequence[Scene],
    geometry: Geometry,
    plan: Plan,
    batch: int,
    file: Path,
    deadline: float,
) -> bool:
    """Returns whether it is done."""
    device = next(vae.parameters()).device
    clips = sample_clips(scenes, geometry, seed=2).to(device)
    balance(vae, sound(clips.rows(slice(0, 32)), range(PIECE)).flatten(0, 1)[:, None])
    trainer = Trainer(vae, plan, file)

    def wave_of(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        rows = torch.randint(len(clips), (batch,), generator=generator)
        # Beginning and end have fades, which the middle has not: each is met as often.
        middle = int(torch.randint(geometry.audio_latents - PIECE, (1,), generator=generator))
        first = (0, middle, geometry.audio_latents - PIECE)[step % 3]
        return sound(clips.rows(rows.to(device)), range(first, first + PIECE)).flatten(0, 1)[:, None]

    measure = Losses(vae)
    if device.type == "cuda":
        # A step is some 2,000 small kernels: recorded once, they no longer wait for Python.
        measure = torch.cuda.make_graphed_callables(measure, (wave_of(0),))

    def losses(step: int) -> list[Tensor]:
        return list(measure(wave_of(step)))

    done = trainer.run(losses, deadline)
    trainer.take_mean()
    return done


@torch.no_grad()
def encode_all(vae: AutoencoderKLMiniMaxH3Audio, clips: Clips, batch: int) -> Tensor:
    """Posterior means of whole clips: [N, 2, A, C] in bf16."""
    everything = range(clips.geometry.audio_latents)
    parts = []
    for start in range(0, len(clips), batch):
        wave = sound(clips.rows(slice(start, start + batch)), everything)
        means = vae.encode(wave.flatten(0, 1)[:, None]).latent_dist.mean
        parts.append(means.transpose(1, 2).unflatten(0, (-1, 2)).bfloat16())
    return torch.cat(parts)


def _spectral_errors(decoded: Tensor, wanted: Tensor) -> list[Tensor]:
    errors = []
    for size in WINDOWS:
        window = torch.hann_window(size, device=wanted.device)
        spectra = [
            torch.stft(wave, size, size // 4, window=window, return_complex=True).abs() / size**0.5
            for wave in (decoded, wanted)
        ]
        errors.append(SPECTRAL_WEIGHT * (spectra[0] - spectra[1]).abs().mean())
    return errors
