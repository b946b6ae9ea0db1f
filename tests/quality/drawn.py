"""Videos of scenes as the training script draws them, in the files that the product makes."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from h3.mp4 import SegmentWriter, remux
from h3.sequence import Geometry
from tools.demo_model.clips import Clips, draw, sample_clips, sound
from tools.demo_model.scenes import Scene

SIZE, STEPS = Geometry(256, 160, 39), 16  # that the demo's model was trained at, and that it is judged with


def write_drawn(folder: Path, clips: Clips) -> Path:
    """Of the one clip there is."""
    geometry = clips.geometry
    pictures = draw(clips, range(geometry.frames))[0].permute(1, 2, 3, 0).mul(255).round().byte()
    return write_video(folder, geometry, pictures.numpy(), sound(clips, range(geometry.audio_latents))[0].numpy())


def write_video(folder: Path, geometry: Geometry, pictures: np.ndarray, samples: np.ndarray) -> Path:
    """pictures [F, H, W, 3] uint8, samples [2, S]"""
    pieces = folder / "pieces"
    pieces.mkdir(parents=True)
    writer = SegmentWriter(
        pieces, width=geometry.width, height=geometry.height, clip_lengths=geometry.clip_frames, audio=samples
    )
    edges = np.cumsum([0, *geometry.clip_frames])
    segments = [writer.write(pictures[first:last]).path for first, last in pairwise(edges)]
    remux(writer.header, segments, folder / "video.mp4")
    return folder / "video.mp4"


def write_first_frame(path: Path, scene: Scene, seed: int) -> Path:
    """A picture that a clip of this scene begins with, as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first = draw(sample_clips([scene], SIZE, seed), range(1))[0, :, 0].permute(1, 2, 0)
    Image.fromarray(first.mul(255).round().byte().numpy()).save(path)
    return path
