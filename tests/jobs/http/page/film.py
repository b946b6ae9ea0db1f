"""A short video of a made-up model: real H.264 and AAC in real segments, and previews that grow sharper."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from h3.mp4 import Encoding, SegmentWriter, remux
from h3.sequence import AUDIO_RATE_HZ, FPS

WIDTH, HEIGHT = 320, 192
CLIPS = (17, 17, 17, 22)  # frames, as H3 decodes them


@dataclass(frozen=True)
class Film:
    header: bytes
    segments: list[bytes]
    durations_s: list[float]
    whole: bytes
    picture: Image.Image

    @property
    def duration_s(self) -> float:
        return sum(self.durations_s)

    def preview(self, sharpness: float) -> bytes:
        """As after a part of the steps: noise that gives way to the picture."""
        seen = self.picture.filter(ImageFilter.GaussianBlur(14 * (1 - sharpness)))
        noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8))
        sink = BytesIO()
        Image.blend(seen, noise, 0.6 * (1 - sharpness)).save(sink, "PNG")
        return sink.getvalue()


def make_film(folder: Path, seed: int = 0) -> Film:
    frames = [_draw(number, seed) for number in range(sum(CLIPS))]
    writer = SegmentWriter(
        folder, width=WIDTH, height=HEIGHT, clip_lengths=CLIPS, audio=_hum(), encoding=Encoding(crf=28, threads=1)
    )
    ends = np.cumsum(CLIPS)
    files = [writer.write(np.stack(frames[end - clip : end])) for clip, end in zip(CLIPS, ends, strict=True)]
    remux(writer.header, [file.path for file in files], folder / "video.mp4")
    return Film(
        header=writer.header.read_bytes(),
        segments=[file.path.read_bytes() for file in files],
        durations_s=[file.duration_s for file in files],
        whole=(folder / "video.mp4").read_bytes(),
        picture=Image.fromarray(frames[0]),
    )


def _draw(number: int, seed: int) -> np.ndarray:
    """A sun that wanders over a sea."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    sky = np.array([[246, 180, 120], [120, 170, 220], [200, 150, 210]][seed % 3], np.float32)
    sea = np.array([[20, 60, 90], [10, 90, 110], [60, 40, 110]][seed % 3], np.float32)
    share = np.clip((y - HEIGHT * 0.45) / (HEIGHT * 0.25), 0, 1)[..., None]
    sun = np.exp(-((x - 60 - 2.5 * number) ** 2 + (y - 70) ** 2) / 500)[..., None]
    waves = (8 * np.sin(x / 9 + number / 3 + y / 4))[..., None] * share
    picture = sky * (1 - share) + sea * share + sun * np.array([255, 220, 140], np.float32) + waves
    return picture.clip(0, 255).astype(np.uint8)


def _hum() -> np.ndarray:
    """Two tones."""
    times = np.arange(round(sum(CLIPS) * AUDIO_RATE_HZ / FPS)) / AUDIO_RATE_HZ
    return (0.1 * np.sin(2 * np.pi * np.array([[220.0], [277.0]]) * times)).astype(np.float32)
