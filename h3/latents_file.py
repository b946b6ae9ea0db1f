"""A render's latents as a safetensors file."""

from pathlib import Path

import torch

from h3.errors import CheckpointError
from h3.sampler import Latents
from h3.sequence import Geometry, patchify, unpatchify
from h3.tensor_file import TensorReader, read_header, write_tensors
from h3.weights import Part


def write_latents(path: Path, latents: Latents, geometry: Geometry) -> None:
    """`video` [C, F, Hl, Wl] and `audio` [2, channels, A], fp32."""
    audio = latents.audio.unflatten(0, (2, -1)).transpose(1, 2).contiguous()
    write_tensors(path, {"video": unpatchify(latents.video, geometry).contiguous(), "audio": audio}, {"format": "pt"})


def read_latents(path: Path, geometry: Geometry, video_channels: int, audio_channels: int) -> Latents:
    """What `write_latents` writes. Raises CheckpointError naming the tensor that is of another form."""
    header = read_header(path)
    wanted = {
        "video": (video_channels, geometry.latent_frames, geometry.latent_height, geometry.latent_width),
        "audio": (2, audio_channels, geometry.audio_latents),
    }
    with TensorReader(torch.device("cpu")) as reader:
        for name, shape in wanted.items():
            if name not in header.tensors:
                raise CheckpointError(f"{path} lacks tensor {name}")
            Part(name, shape, (torch.float32,)).check(header.tensors[name])
        video, audio = (reader.read(header.tensors[name]) for name in wanted)
    return Latents(patchify(video), audio.transpose(1, 2).flatten(0, 1).contiguous())
