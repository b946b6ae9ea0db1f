"""From a picture file to a keyframe: upright, RGB, of the video's size. Knows no model.

The first keyframe of a request is stretched to the video's size, which its own proportions have usually chosen; a
second one covers it and is cropped, so that nothing in it is distorted against the first.
Source: MiniMax-H3's published pipeline, restated; LANCZOS throughout.
"""

import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from h3.errors import ConfigError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # none of those that Pillow hands to another program
MOST_PIXELS = 64_000_000
_TOO_LARGE = f"more than {MOST_PIXELS // 10**6} megapixels: scale the picture down"
_GREY_16_BITS = ("I", "I;16", "I;16L", "I;16B", "I;16N")
# What Pillow's readers let through of a damaged file.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error)


def open_picture(path: Path) -> Image.Image:
    """The picture of a file, upright and RGB; of an animation the first frame.

    Raises ConfigError naming the file if it is no picture of `FORMATS`, damaged, or larger than `MOST_PIXELS`.
    """
    try:
        return _read(path)
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise ConfigError(f"{path}: {_TOO_LARGE}") from exc
    except (FileNotFoundError, IsADirectoryError, PermissionError) as exc:
        raise ConfigError(f"{path}: not a file that can be read ({exc.strerror})") from exc
    except UnidentifiedImageError as exc:
        raise ConfigError(f"{path}: no picture, or of an unknown kind: convert it to {', '.join(FORMATS)}") from exc
    except _DAMAGED as exc:
        raise ConfigError(f"{path}: a damaged picture ({exc}): save it anew, for instance as PNG") from exc


def _read(path: Path) -> Image.Image:
    with Image.open(path, formats=FORMATS) as picture:
        if picture.width * picture.height > MOST_PIXELS:
            raise ConfigError(_TOO_LARGE)
        return stand_upright(picture)


def stand_upright(picture: Image.Image) -> Image.Image:
    """RGB, turned as its EXIF says. What is transparent becomes black, the ground of a video.

    EXIF that cannot be read turns nothing, as in every viewer.
    """
    picture.load()  # damaged pixels are refused, damaged EXIF is not
    with suppress(*_DAMAGED):
        picture = ImageOps.exif_transpose(picture)
    if picture.mode in _GREY_16_BITS:
        picture = _narrow(picture)
    if picture.mode == "F":
        raise ConfigError("a picture of floating-point numbers has no known white: save it with 8 or 16 bits")
    if picture.has_transparency_data:
        ground = Image.new("RGBA", picture.size, "black")
        picture = Image.alpha_composite(ground, picture.convert("RGBA"))
    return picture.convert("RGB")


def _narrow(picture: Image.Image) -> Image.Image:
    """Grey of 16 bits to 8 bits; Pillow's own conversion makes everything above 255 white."""
    values = np.asarray(picture)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ConfigError("a picture of 32-bit numbers has no known white: save it with 8 or 16 bits")
    return Image.fromarray((values / 0x101).round().astype(np.uint8))


def prepare(picture: Image.Image, width: int, height: int, *, cover: bool) -> Tensor:
    """A picture as keyframe: uint8 [H, W, 3]. `cover` crops what sticks out; else the picture is stretched.

    Raises ConfigError if the picture is so long and thin that covering would blow it up beyond `MOST_PIXELS`.
    """
    picture = stand_upright(picture)
    if picture.size != (width, height):
        picture = _cover(picture, width, height) if cover else picture.resize((width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(picture))


def _cover(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Scale until no side is too short, and keep the middle."""
    scale = max(width / picture.width, height / picture.height)
    scaled_width = max(width, round(picture.width * scale))
    scaled_height = max(height, round(picture.height * scale))
    if scaled_width * scaled_height > MOST_PIXELS:
        raise ConfigError(
            f"a picture of {picture.width}x{picture.height} pixels is too long to cover {width}x{height}: crop it first"
        )
    left, top = (scaled_width - width) // 2, (scaled_height - height) // 2
    scaled = picture.resize((scaled_width, scaled_height), Image.Resampling.LANCZOS)
    return scaled.crop((left, top, left + width, top + height))
