"""What callers may write for a render: OpenAI's fields, ours, and the names that other servers have for these.

`seconds`, `size` and `aspect` snap to what the model can do; `frames`, `width` and `height` are taken as they are, and
refused with their neighbours by `GenerateRequest`, which checks all values.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from jobs.errors import RequestInvalid
from jobs.pictures import Picture, recognise_picture
from jobs.queues import QueueName
from jobs.request import FPS, GenerateRequest, explain_field
from jobs.submission import LONGEST_WEBHOOK

MODEL = "minimax-h3"
MODEL_NAMES = (MODEL, "minimaxai/minimax-h3", "h3")
MOST_FIELDS, MOST_EXPLAINED = 100, 20
PICTURES = ("input_reference", "first_frame", "last_frame")
_SIZE = re.compile(r"([1-9][0-9]{0,4})[xX*]([1-9][0-9]{0,4})", re.ASCII)
_DATA_URL = re.compile(r"data:image/[a-z+.-]+;base64,", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,19})?", re.ASCII)


def _read_number(value: object) -> object:
    """Of a form's field, or as OpenAI's clients write seconds: text. What is none is left for the check to name."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _read_flag(value: object) -> object:
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


Whole = Annotated[int | None, BeforeValidator(_read_number)]
Number = Annotated[float | None, BeforeValidator(_read_number)]
Flag = Annotated[bool | None, BeforeValidator(_read_flag)]
Text = Annotated[str | None, Field(max_length=500)]


class ImageReference(BaseModel):
    """A picture in JSON."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image_url: str = Field(description="data:image/png;base64,... or the key of a picture in the store, inputs/NAME")


class VideoWish(BaseModel):
    """One render, as a caller writes it."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    prompt: str = Field(description="what should be seen and heard")
    model: Text = Field(None, description=f"{MODEL}, which is what there is")
    size: Text = Field(None, description="like 1280x720; snaps")
    seconds: Number = Field(None, description="a number, or text as OpenAI's clients send it; snaps up")
    aspect: Text = Field(
        None, validation_alias=AliasChoices("aspect", "aspect_ratio"), description="like 16:9; snaps, instead of size"
    )
    short_side: Whole = Field(None, description="pixels; snaps; goes with aspect")
    width: Whole = Field(None, description="pixels, a multiple of 32; instead of size")
    height: Whole = Field(None, description="pixels, a multiple of 32")
    frames: Whole = Field(
        None, validation_alias=AliasChoices("frames", "num_frames"), description="17n + 5; instead of seconds"
    )
    fps: Whole = Field(None, description=f"{FPS}, which is what there is")
    steps: Whole = Field(
        None, validation_alias=AliasChoices("steps", "num_inference_steps"), description="model evaluations"
    )
    seed: Whole = Field(None, description="of all noise; drawn when left out")
    input_reference: ImageReference | str | None = Field(None, description="the picture that the video begins with")
    first_frame: ImageReference | str | None = Field(None, description="the same, by our name")
    last_frame: ImageReference | str | None = Field(None, description="the picture that the video ends with")
    preview_every: Whole = Field(None, description="steps between previews; 0 for none")
    checkpoint_every: Whole = Field(None, description="steps between checkpoints")
    mode: Text = Field(None, description="auto, ulysses or tensor")
    precision: Text = Field(None, description="auto, bf16, nvfp4 or fp8")
    attention: Text = Field(None, description="auto, sdpa, cudnn, flash, efficient, fa3, fa3-fp8 or sage")
    deadline_s: Number = Field(None, description="from now; a render without a result by then fails")
    preempt: Flag = Field(None, description="in queue high: a running batch job may be put back for it")
    queue: QueueName = Field(QueueName.DEFAULT, strict=False, description="served in this order")
    webhook: Annotated[str | None, Field(max_length=LONGEST_WEBHOOK)] = Field(
        None, description="URL that is called at the end, signed"
    )


SAME_NAME = (
    "prompt",
    "seconds",
    "aspect",
    "short_side",
    "width",
    "height",
    "frames",
    "steps",
    "seed",
    "preview_every",
    "checkpoint_every",
    "mode",
    "precision",
    "attention",
    "deadline_s",
    "preempt",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A wish that can be granted."""

    request: GenerateRequest
    pictures: tuple[Picture, ...]  # to put into the store before it is submitted
    queue: QueueName
    webhook: str | None


def parse_wish(fields: Mapping[str, object], uploads: Mapping[str, bytes]) -> Wanted:
    """Check all of it. Raises RequestInvalid and PictureInvalid.

    uploads  pictures that came as files, by their field
    """
    if len(fields) > MOST_FIELDS:
        raise RequestInvalid(f"{len(fields)} fields are given, and a request has no more than {MOST_FIELDS}")
    try:
        wish = VideoWish.model_validate(fields)
    except ValidationError as exc:
        lines = dict.fromkeys(explain_field(entry, VideoWish) for entry in exc.errors()[:MOST_EXPLAINED])
        raise RequestInvalid("\n".join(lines)) from exc
    _check_names(wish)
    pictures: list[Picture] = []
    frames = dict(_find_frames(wish, uploads, pictures))
    chosen = {name: value for name in SAME_NAME if (value := getattr(wish, name)) is not None}
    return Wanted(GenerateRequest.parse(chosen | _read_size(wish) | frames), tuple(pictures), wish.queue, wish.webhook)


def _check_names(wish: VideoWish) -> None:
    if wish.model is not None and wish.model.lower() not in MODEL_NAMES:
        raise RequestInvalid(f"model {wish.model!a} is not served here: {MODEL} is, or leave it out")
    if wish.fps not in (None, FPS):
        raise RequestInvalid(f"fps {wish.fps} is not what the model makes: {FPS}, or leave it out")


def _read_size(wish: VideoWish) -> dict[str, object]:
    if wish.size is None:
        return {}
    if others := [name for name in ("width", "height", "aspect", "short_side") if getattr(wish, name) is not None]:
        raise RequestInvalid(f"size {wish.size!a} and {others[0]} both choose the size: leave one out")
    if not (match := _SIZE.fullmatch(wish.size)):
        raise RequestInvalid(f"size {wish.size!a} is not WIDTHxHEIGHT: write it like 1280x720")
    width, height = int(match[1]), int(match[2])
    return {"aspect": _reduce(width, height), "short_side": min(width, height)}


def _reduce(width: int, height: int) -> str:
    """As an aspect of at most four digits a side."""
    scale = max(1.0, max(width, height) / 9999)
    return f"{max(1, round(width / scale))}:{max(1, round(height / scale))}"


def _find_frames(wish: VideoWish, uploads: Mapping[str, bytes], pictures: list[Picture]) -> Mapping[str, str]:
    """Keys of the first and the last frame; what is to be uploaded for them is added to `pictures`."""
    if strange := [name for name in uploads if name not in PICTURES]:
        raise RequestInvalid(f"{strange[0][:100]!a} came as a file: files are {', '.join(PICTURES)}")
    given = {name: uploads.get(name) or getattr(wish, name) for name in PICTURES}
    if given["input_reference"] is not None and given["first_frame"] is not None:
        raise RequestInvalid("input_reference and first_frame are the same: give one of the two")
    named = {"first_frame": given["input_reference"] or given["first_frame"], "last_frame": given["last_frame"]}
    return {name: _find_key(name, found, pictures) for name, found in named.items() if found is not None}


def _find_key(name: str, found: bytes | ImageReference | str, pictures: list[Picture]) -> str:
    text = found.image_url if isinstance(found, ImageReference) else found
    if isinstance(text, str) and not _DATA_URL.match(text):
        if "://" in text:
            raise RequestInvalid(f"{name} {text[:100]!a} is fetched by nobody: send the file, or a data: URL of it")
        return text  # a key of the store, which the request's check knows
    picture = recognise_picture(name, _decode(name, text) if isinstance(text, str) else text)
    pictures.append(picture)
    return picture.key


def _decode(name: str, url: str) -> bytes:
    try:
        return base64.b64decode(url.partition(",")[2], validate=True)
    except (binascii.Error, ValueError) as exc:
        raise RequestInvalid(f"{name} is no data: URL of a picture ({exc}): encode the file in base64") from exc
