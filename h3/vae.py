"""From denoised latents to pictures and sound, and from a picture to latents, with the diffusers classes for both.

The video decoder works in clips of 17 frames that are final as soon as they are decoded: clip i reads latent frames
5i to 5i + 6, its window has 22 frames, and the last 5 of them are what the next clip is cross-faded with (or end the
video). So a video streams exactly, the only state between clips is those 5 frames, and windows can be decoded apart.

A class is built without memory and filled tensor by tensor, and only with the parts that are wanted: who decodes
needs no encoder.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import init_empty_weights  # type: ignore[import-untyped]  # it has no types
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, ModelMixin
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch import Tensor

from h3.model import MODEL_DTYPE
from h3.sequence import CLIP_FRAMES, CLIP_LATENTS, PIXELS_PER_LATENT, TAIL_FRAMES
from h3.tensor_file import StoredTensor
from h3.vae_files import is_kept_in_fp32, read_audio_vae, read_video_vae
from h3.vae_tiles import decode_tiles_together
from h3.weights import Recipe, fill

VIDEO_ENCODER = ("encoder", "quant_conv")
VIDEO_DECODER = ("post_quant_conv", "decoder")
AUDIO_ENCODER = ("encoder", "pre_block", "mean_proj", "logs_proj")
AUDIO_DECODER = ("dec_in_proj", "decoder")
WINDOW_FRAMES = CLIP_FRAMES + TAIL_FRAMES
_WINDOW_LATENTS = CLIP_LATENTS + 2
_PICTURE_SEED = 42  # the released model's, whatever a request's is
_PIXEL_MEAN = torch.tensor([0.485, 0.456, 0.406])  # ImageNet, the space that the autoencoder speaks
_PIXEL_STD = torch.tensor([0.229, 0.224, 0.225])


class VideoDecoder:
    """Clip by clip, on one device. Latents are the denoiser's, normalised: [C, F, Hl, Wl] fp32."""

    def __init__(self, vae: AutoencoderKLMiniMaxH3) -> None:
        decode_tiles_together(vae)
        self.module = vae
        self._mean, self._std = (values[:, None, None, None] for values in normalisation(vae))

    @property
    def channels(self) -> int:
        """Of the latents."""
        return len(self._mean)

    def clips(self, latents: Tensor, first: int = 0) -> Iterator[Tensor]:
        """The video in order from clip `first`, as uint8 [F, H, W, 3] on the CPU: 17 frames each, 22 in the last."""
        return map(to_pixels, self.float_clips(latents, first))

    def float_clips(self, latents: Tensor, first: int = 0) -> Iterator[Tensor]:
        """As `clips`, before rounding: in decoder space, on the device."""
        joiner = ClipJoiner(latents, first)
        for index in joiner.windows:
            yield from joiner.add(self.window(latents, index))

    def window(self, latents: Tensor, index: int) -> Tensor:
        """Clip `index` and the 5 frames after it, before any cross-fade: [22, H, W, 3] in decoder space."""
        device = self.module.device  # which may change from phase to phase
        wanted = latents[:, index * CLIP_LATENTS : index * CLIP_LATENTS + _WINDOW_LATENTS].to(device)
        sample: Tensor = self.module.decode((wanted * self._std.to(device) + self._mean.to(device))[None]).sample
        return sample[0].permute(1, 2, 3, 0)

    def empty_window(self, latents: Tensor) -> Tensor:
        """Room for any of these latents' windows."""
        height, width = (side * PIXELS_PER_LATENT for side in latents.shape[2:])
        return self.module.decoder.proj_out.weight.new_empty(WINDOW_FRAMES, height, width, 3)

    def picture(self, latents: Tensor, longest_side: int) -> Tensor:
        """One small frame from the middle of the video: uint8 [h, w, 3] on the CPU."""
        middle = self.window(latents, latents.shape[1] // CLIP_LATENTS // 2)[CLIP_FRAMES // 2]
        scale = min(1.0, longest_side / max(middle.shape[:2]))
        size = [max(1, round(side * scale)) for side in middle.shape[:2]]
        small = F.interpolate(middle.permute(2, 0, 1)[None].float(), size, mode="bilinear", antialias=True)
        return to_pixels(small[0].permute(1, 2, 0))


class ClipJoiner:
    """Makes finished clips, from clip `first` on, of windows that come in playing order."""

    def __init__(self, latents: Tensor, first: int) -> None:
        count = latents.shape[1] // CLIP_LATENTS
        self._first, self._last = first, count - 1
        # The one before is needed too, for the frames that the first is cross-faded with.
        self.windows = range(max(0, first - 1) if first < count else count, count)
        self._next = self.windows.start
        self._tail: Tensor | None = None  # of the window before

    def add(self, window: Tensor) -> list[Tensor]:
        """Take the next of `windows`. Returns its clip, or nothing if it was only needed for its tail."""
        index, self._next = self._next, self._next + 1
        clip, tail = window[:CLIP_FRAMES], window[CLIP_FRAMES:]
        if self._tail is not None:
            clip = torch.cat([cross_fade(self._tail, clip[: len(tail)]), clip[len(tail) :]])
        self._tail = tail
        if index < self._first:
            return []
        return [clip if index < self._last else torch.cat([clip, tail])]


def cross_fade(old: Tensor, new: Tensor) -> Tensor:
    """Linear blend along the first axis, beginning wholly at `old`. Same shapes; in their dtype, as diffusers does."""
    weight = torch.arange(len(new), device=new.device, dtype=new.dtype).div(len(new)).view(-1, 1, 1, 1)
    return old * (1 - weight) + new * weight


def to_pixels(frames: Tensor) -> Tensor:
    """Decoder space [..., 3] to uint8 RGB on the CPU."""
    mean, std = _PIXEL_MEAN.to(frames.device), _PIXEL_STD.to(frames.device)
    return (frames.float() * std + mean).clamp(0, 1).mul(255).round().to(torch.uint8).cpu()


class VideoEncoder:
    """Pictures that a render is conditioned on, to latents."""

    def __init__(self, vae: AutoencoderKLMiniMaxH3) -> None:
        self.module = vae
        self._mean, self._std = (values[:, None, None, None] for values in normalisation(vae))

    def encode(self, picture: Tensor) -> Tensor:
        """uint8 [H, W, 3] to normalised latents [C, 1, Hl, Wl], fp32 on the CPU.

        The posterior is sampled, under a seed of its own, and rounded to fp16: conditions that the model has learnt.
        Source: `encode_vae_condition` in diffusers' pipeline for H3.
        """
        latents = self.posterior(picture).sample(generator=torch.Generator().manual_seed(_PICTURE_SEED))[0]
        return (latents.half().float().cpu() - self._mean) / self._std

    def posterior(self, picture: Tensor) -> DiagonalGaussianDistribution:
        """Of the latents [1, C, 1, Hl, Wl], not normalised, on the device."""
        pixels = picture.to(self.module.device).permute(2, 0, 1)[:, None]
        mean, std = (values.to(pixels.device)[:, None, None, None] for values in (_PIXEL_MEAN, _PIXEL_STD))
        with full_fp32():
            return self.module.encode(((pixels.float().div(255.0) - mean) / std)[None]).latent_dist


class AudioDecoder:
    """The whole sound at once, fp32 throughout: in bf16 it is audibly wrong."""

    def __init__(self, vae: AutoencoderKLMiniMaxH3Audio) -> None:
        self.module = vae
        self._mean, self._std = (values[:, None] for values in normalisation(vae))

    @property
    def channels(self) -> int:
        """Of the latents, of one stereo channel."""
        return len(self._mean)

    def decode(self, rows: Tensor) -> Tensor:
        """rows [2A, C] fp32, left channel first. Returns stereo samples at 32 kHz: [2, 800A] fp32 on the CPU."""
        device = self.module.device
        latents = rows.to(device).unflatten(0, (2, -1)).transpose(1, 2)  # [2, C, A]
        with full_fp32():
            wave: Tensor = self.module.decode(latents * self._std.to(device) + self._mean.to(device)).sample
        return wave[:, 0].cpu()


def full_fp32() -> AbstractContextManager[None]:
    """Convolutions in fp32 as it is: cuDNN rounds their inputs to ten bits unless it is told not to."""
    cudnn = torch.backends.cudnn
    return cudnn.flags(
        enabled=cudnn.enabled, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    )


def normalisation(vae: ModelMixin) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the latents, [C] fp32 each, on the CPU."""
    return torch.tensor(vae.config.latents_mean), torch.tensor(vae.config.latents_std)


def load_video_decoder(folder: Path, device: torch.device, dtype: torch.dtype = MODEL_DTYPE) -> VideoDecoder:
    """Load what decodes of a folder `video_vae`. Raises CheckpointError naming file and field or tensor."""
    return VideoDecoder(load_video_vae(folder, device, dtype, VIDEO_DECODER))


def load_video_encoder(folder: Path, device: torch.device) -> VideoEncoder:
    """Load what encodes of a folder `video_vae`, all of it fp32. Raises CheckpointError as the decoder's does."""
    return VideoEncoder(load_video_vae(folder, device, parts=VIDEO_ENCODER))


def load_video_vae(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype = MODEL_DTYPE,
    parts: tuple[str, ...] = VIDEO_ENCODER + VIDEO_DECODER,
) -> AutoencoderKLMiniMaxH3:
    """The class with these parts alone. What it pins to fp32 (encoder, norms, residual scales) is so in any dtype."""
    files = read_video_vae(folder)
    stored = files.check()
    with init_empty_weights(include_buffers=False):  # the decoder's rotary frequencies are in no file
        vae = AutoencoderKLMiniMaxH3(**files.config.model_dump())
    for name, parameter in vae.named_parameters():
        if not is_kept_in_fp32(name):
            parameter.data = parameter.data.to(dtype)
    return _fill(vae, files.recipes, stored, device, parts)


def load_audio_decoder(folder: Path, device: torch.device) -> AudioDecoder:
    """Load what decodes of a folder `audio_vae`. Raises CheckpointError naming file and field or tensor."""
    return AudioDecoder(load_audio_vae(folder, device, AUDIO_DECODER))


def load_audio_vae(
    folder: Path, device: torch.device, parts: tuple[str, ...] = AUDIO_ENCODER + AUDIO_DECODER
) -> AutoencoderKLMiniMaxH3Audio:
    """The class with these parts alone, fp32."""
    files = read_audio_vae(folder)
    stored = files.check()
    with init_empty_weights(include_buffers=False), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the class uses torch's old weight norm
        vae = AutoencoderKLMiniMaxH3Audio(**files.config.model_dump())
    return _fill(vae, files.recipes, stored, device, parts)


def _fill(
    vae: ModelMixin,
    recipes: Mapping[str, Recipe],
    stored: Mapping[str, StoredTensor],
    device: torch.device,
    parts: tuple[str, ...],
) -> ModelMixin:
    """Drop all other parts, and give these their tensors."""
    assert vae.state_dict().keys() == recipes.keys()  # and `fill` compares shapes
    for name in [name for name, _ in vae.named_children() if name not in parts]:
        delattr(vae, name)
    fill(vae, {name: recipes[name] for name in vae.state_dict()}, stored, device)
    return vae.to(device).eval().requires_grad_(False)
