"""What the denoiser is trained on: every clip's latents and captions, made once by the finished autoencoders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from torch import Tensor

from h3.sequence import Anchor, Geometry, Layout
from h3.text import TextEncoder
from h3.vae import normalisation
from tools.demo_model import audio_vae, video_vae
from tools.demo_model.clips import Clips, draw
from tools.demo_model.denoiser import Examples, Texts
from tools.demo_model.scenes import TEMPLATES, Scene, caption

ENCODED_AT_ONCE = 16
TEXTS_AT_ONCE = 512
KEYFRAMES_AT_ONCE = 64
KEYFRAMED_TEMPLATE = 2


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of latents, in each channel."""

    mean: Tensor  # [C]
    std: Tensor

    @classmethod
    def of(cls, latents: Tensor, channel: int) -> "Statistics":
        others = [axis for axis in range(latents.ndim) if axis != channel]
        return cls(latents.float().mean(others), latents.float().std(others))

    def normalise(self, latents: Tensor, channel: int) -> Tensor:
        """In bf16, part by part, for fp32 takes twice as much."""
        shape = [-1 if axis == channel else 1 for axis in range(latents.ndim)]
        mean, std = self.mean.view(shape), self.std.view(shape)
        return torch.cat([((part.float() - mean) / std).bfloat16() for part in latents.split(ENCODED_AT_ONCE)])


@torch.no_grad()
def make_examples(
    clips: Clips, texts: Sequence[Texts], video: AutoencoderKLMiniMaxH3, audio: AutoencoderKLMiniMaxH3Audio
) -> Examples:
    """What all that has been made so far says of the clips."""
    pictures, noise = video_vae.encode_all(video, clips, ENCODED_AT_ONCE)
    sounds = audio_vae.encode_all(audio, clips, ENCODED_AT_ONCE)
    seen, heard = (Statistics(*(values.to(pictures.device) for values in normalisation(vae))) for vae in (video, audio))
    return Examples(
        video=to_rows(seen.normalise(pictures, 1)),
        audio=heard.normalise(sounds, 3).flatten(1, 2),
        keyframe_noise=(noise / seen.std).repeat_interleave(4),  # a channel's four places in a patch follow each other
        texts=texts,
    )


@torch.no_grad()
def make_texts(scenes: Sequence[Scene], clips: Clips, text: TextEncoder, keyframed: int) -> list[Texts]:
    """The captions of every template, and one of them with the first frame of the first `keyframed` clips."""
    plain = [_texts(scenes, template, clips.geometry, text) for template in range(len(TEMPLATES))]
    return [*plain, _texts_with_keyframes(scenes, KEYFRAMED_TEMPLATE, clips.rows(slice(0, keyframed)), text)]


def to_rows(latents: Tensor) -> Tensor:
    """As `h3.sequence.patchify`, of many videos: [N, C, F, h, w] to [N, V, 4 C]."""
    count, channels, frames, height, width = latents.shape
    blocks = latents.reshape(count, channels, frames, height // 2, 2, width // 2, 2)
    return blocks.permute(0, 2, 3, 5, 1, 4, 6).reshape(count, -1, channels * 4)


def _texts(scenes: Sequence[Scene], template: int, geometry: Geometry, text: TextEncoder) -> Texts:
    device = text.module.device
    ids = torch.tensor([text.present(caption(scene, template)).ids for scene in scenes])
    states = [
        text.module(input_ids=part.to(device), use_cache=False).last_hidden_state for part in ids.split(TEXTS_AT_ONCE)
    ]
    return Texts(Layout(geometry, ids.shape[1]), torch.cat(states), torch.arange(len(scenes), device=device))


def _texts_with_keyframes(scenes: Sequence[Scene], template: int, clips: Clips, text: TextEncoder) -> Texts:
    device, count = text.module.device, len(clips)
    presented = [
        text.present(caption(scene, template), [picture])
        for scene, picture in zip(scenes[:count], _first_frames(clips), strict=True)
    ]
    states = [text.encode(presentation) for presentation in presented]
    layout = Layout(clips.geometry, len(states[0]), presented[0].vision, (Anchor.FIRST,))
    return Texts(layout, torch.stack(states), torch.arange(count, device=device))


def _first_frames(clips: Clips) -> Iterator[Tensor]:
    """uint8 [H, W, 3] on the CPU."""
    for start in range(0, len(clips), KEYFRAMES_AT_ONCE):
        frames = draw(clips.rows(slice(start, start + KEYFRAMES_AT_ONCE)), range(1))[:, :, 0]
        yield from frames.mul(255).round().byte().permute(0, 2, 3, 1).cpu()
