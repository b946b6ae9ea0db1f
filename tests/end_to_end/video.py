"""What tests want to know of a video, read with PyAV."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np


@dataclass(frozen=True)
class Contents:
    """Decoded pictures and sound, with their times."""

    pictures: np.ndarray  # [F, H, W, 3] uint8
    picture_times: list[Fraction]  # seconds
    samples: np.ndarray  # [2, S] float32
    sample_rate: int
    audio_packets: list[tuple[Fraction, Fraction]]  # start and duration in seconds
    fps: Fraction
    video_codec: str
    pixel_format: str


def read(path: Path) -> Contents:
    with av.open(str(path)) as file:
        video, audio = file.streams.video[0], file.streams.audio[0]
        pictures = list(file.decode(video))
        fps, codec, pixels, rate = video.average_rate, video.codec_context.name, video.pix_fmt, audio.sample_rate
    with av.open(str(path)) as file:
        sound = [frame.to_ndarray() for frame in file.decode(audio=0)]
    with av.open(str(path)) as file:
        packets = [(p.pts * p.time_base, p.duration * p.time_base) for p in file.demux(audio=0) if p.pts is not None]
    return Contents(
        pictures=np.stack([picture.to_ndarray(format="rgb24") for picture in pictures]),
        picture_times=[picture.pts * picture.time_base for picture in pictures],
        samples=np.concatenate(sound, axis=1),
        sample_rate=rate,
        audio_packets=packets,
        fps=fps,
        video_codec=codec,
        pixel_format=pixels,
    )
