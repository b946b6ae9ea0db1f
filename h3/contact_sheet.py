"""Frames of a video beside each other, to see all of it at one look."""

from pathlib import Path

import av
from PIL import Image

from h3.errors import ConfigError

GAP = 6  # pixels between two frames, and around all
PAPER = (24, 24, 27)
FORMATS = (".png", ".jpg", ".webp")


def write_contact_sheet(video: Path, sheet: Path, *, columns: int, rows: int) -> None:
    """So many frames, evenly from the first to the last, in reading order; all of them, if there are not so many.

    Raises ConfigError for a file that is no video, and for a picture of an unknown kind; OSError.
    """
    if sheet.suffix not in FORMATS:
        raise ConfigError(f"{sheet}: name a picture that ends in {', '.join(FORMATS)}")
    try:
        frames = _read_frames(video, columns * rows)
    except av.InvalidDataError as exc:
        raise ConfigError(f"{video}: not a video that can be read ({exc.strerror})") from exc
    if not frames:
        raise ConfigError(f"{video}: there is no picture in it")
    _lay_out(frames, columns).save(sheet)


def _read_frames(video: Path, most: int) -> list[Image.Image]:
    """Only those that are shown are kept: all frames of a long video are a gigabyte."""
    with av.open(str(video)) as file:
        total = sum(packet.size > 0 for stream in file.streams.video[:1] for packet in file.demux(stream))
    count = min(most, total)
    chosen = {round(place * (total - 1) / max(1, count - 1)) for place in range(count)}
    with av.open(str(video)) as file:
        frames = (frame for stream in file.streams.video[:1] for frame in file.decode(stream))
        return [frame.to_image() for place, frame in enumerate(frames) if place in chosen]


def _lay_out(frames: list[Image.Image], columns: int) -> Image.Image:
    columns = min(columns, len(frames))
    width, height = (side + GAP for side in frames[0].size)
    sheet = Image.new("RGB", (columns * width + GAP, -(-len(frames) // columns) * height + GAP), PAPER)
    for place, frame in enumerate(frames):
        sheet.paste(frame, (place % columns * width + GAP, place // columns * height + GAP))
    return sheet
