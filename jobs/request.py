"""All that a client may ask for, and what becomes of it. Every entrance checks requests here, and only here.

`GenerateRequest` is what a person or a program writes: sizes may be left out, or given as an aspect and a duration,
which snap to what the model can do. `ResolvedRequest` is what travels in the queue: nothing is left to choose.
"""

import difflib
import math
import re
import reprlib
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_core import ErrorDetails

from jobs.errors import RequestInvalid, RequestTooNew

FPS = 24
SIDE_STEP = 32  # pixels; one token of the video model
LONGEST_SIDE = 4096
CLIP_FRAMES, TAIL_FRAMES = 17, 5  # valid frame counts are 17n + 5
FEWEST_FRAMES = CLIP_FRAMES + TAIL_FRAMES
VERSION: Final = 2  # of a request's fields; a worker leaves a job with a later one to newer workers
MOST_FRAMES = 362  # 15 s, the longest the model was trained on
LARGEST_AREA = 768 * 1344  # pixels; a snapped size stays within it

DEFAULT_SECONDS = 5.0
DEFAULT_ASPECT = "16:9"
DEFAULT_SHORT_SIDE = 768

INPUTS = "inputs"  # folder of the store where the pictures of requests lie
ASPECT = re.compile(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})", re.ASCII)
MOST_SHOWN = 200  # letters of a value in a message
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = MOST_SHOWN
PICTURE_KEY = re.compile(rf"{INPUTS}/[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


def _check_prompt(prompt: str) -> str:
    if not prompt.strip():
        raise ValueError("is empty; say what should be seen and heard")
    return prompt


def _check_side(side: int) -> int:
    if side % SIDE_STEP:
        below = side // SIDE_STEP * SIDE_STEP
        valid = [str(s) for s in (below, below + SIDE_STEP) if 0 < s <= LONGEST_SIDE]
        raise ValueError(f"is not a multiple of {SIDE_STEP}; the nearest are {' and '.join(valid)}")
    return side


def _check_frames(frames: int) -> int:
    if not FEWEST_FRAMES <= frames <= MOST_FRAMES or frames % CLIP_FRAMES != TAIL_FRAMES:
        below = (frames - TAIL_FRAMES) // CLIP_FRAMES * CLIP_FRAMES + TAIL_FRAMES
        near = {min(max(f, FEWEST_FRAMES), MOST_FRAMES) for f in (below, below + CLIP_FRAMES)}
        raise ValueError(
            f"is not {CLIP_FRAMES}n + {TAIL_FRAMES} between {FEWEST_FRAMES} and {MOST_FRAMES}; "
            f"nearest: {' and '.join(str(f) for f in sorted(near))}"
        )
    return frames


def _check_picture_key(key: str) -> str:
    if not PICTURE_KEY.fullmatch(key):
        raise ValueError(
            f"is not the key of a picture in the store, like {INPUTS}/kite.png; `h3render submit --first-frame FILE` "
            "and jobs.pictures.put_picture put one there"
        )
    return key


def _check_aspect(aspect: str) -> str:
    match = ASPECT.fullmatch(aspect)
    if not match:
        raise ValueError("is not an aspect from 1:4 to 4:1; write it like 16:9")
    ratio = int(match[1]) / int(match[2])
    if not 0.25 <= ratio <= 4:
        raise ValueError(f"is not an aspect from 1:4 to 4:1; nearest: {'1:4' if ratio < 1 else '4:1'}")
    return aspect


def _whole(pattern: re.Pattern[str]) -> dict[str, JsonValue]:
    """For JSON Schema, whose validators search: nothing before it and nothing after it, no line's end either."""
    return {"pattern": rf"^{pattern.pattern}(?!\n)$"}


# A function checks and explains what `json_schema_extra` tells other programs.
Prompt = Annotated[str, Field(max_length=20_000, json_schema_extra={"pattern": r"\S"}), AfterValidator(_check_prompt)]
Side = Annotated[
    int,
    Field(ge=SIDE_STEP, le=LONGEST_SIDE, json_schema_extra={"multipleOf": SIDE_STEP}),
    AfterValidator(_check_side),
]
Frames = Annotated[
    int,
    Field(json_schema_extra={"enum": [*range(FEWEST_FRAMES, MOST_FRAMES + 1, CLIP_FRAMES)]}),
    AfterValidator(_check_frames),
]
Aspect = Annotated[str, Field(json_schema_extra=_whole(ASPECT)), AfterValidator(_check_aspect)]
ShortSide = Annotated[int, Field(ge=SIDE_STEP, le=LONGEST_SIDE)]
Seconds = Annotated[float, Field(gt=0, le=MOST_FRAMES / FPS, strict=False, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=1, le=1000)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Cadence = Annotated[int, Field(ge=0, le=1000)]
PictureKey = Annotated[
    str, Field(max_length=500, json_schema_extra=_whole(PICTURE_KEY)), AfterValidator(_check_picture_key)
]
Deadline = Annotated[float, Field(gt=0, le=30 * 24 * 3600, strict=False, allow_inf_nan=False)]


class Mode(StrEnum):
    """How the GPUs of a machine share one render."""

    AUTO = "auto"  # whatever the worker does
    ULYSSES = "ulysses"  # each has the whole model, and some of the tokens
    TENSOR = "tensor"  # each has a part of every layer


class Precision(StrEnum):
    """The weights' number format."""

    AUTO = "auto"  # whatever the worker has loaded
    BF16 = "bf16"
    NVFP4 = "nvfp4"
    FP8 = "fp8"  # activations too: less exact


class Attention(StrEnum):
    """What computes attention."""

    AUTO = "auto"  # whatever the worker runs
    SDPA = "sdpa"  # torch's: the best of the next three, on a GPU
    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    FA3 = "fa3"  # FlashAttention-3
    FA3_FP8 = "fa3-fp8"  # the same in 8 bits: less exact
    SAGE = "sage"  # in 8 bits: less exact


class _Common(BaseModel):
    """Fields that mean the same before and after resolving."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    prompt: Prompt = Field(description="what should be seen and heard")
    steps: Steps = Field(50, description="model evaluations")
    preview_every: Cadence = Field(5, description="steps between previews; 0 for none")
    checkpoint_every: Cadence = Field(2, description="steps between checkpoints; 0 for only the last")
    mode: Annotated[Mode, Field(strict=False)] = Mode.AUTO  # JSON has no enums
    precision: Annotated[Precision, Field(strict=False)] = Precision.AUTO
    attention: Annotated[Attention, Field(strict=False)] = Attention.AUTO
    deadline_s: Deadline | None = Field(None, description="from the submit; a job without a result by then fails")
    first_frame: PictureKey | None = Field(
        None, description="key in the store of the picture that the video begins with"
    )
    last_frame: PictureKey | None = Field(None, description="and of the one that it ends with")
    preempt: bool = Field(False, description="in queue high: a running job of queue batch may be put back for it")


class ResolvedRequest(_Common):
    """One render, fully decided: what the queue carries and a result records."""

    version: Literal[1, 2] = Field(VERSION, description="of these fields; 2 has attention, and precision fp8")
    width: Side = Field(description="pixels")
    height: Side = Field(description="pixels")
    frames: Frames = Field(description=f"at {FPS} a second")
    seed: Seed = Field(description="of all noise")


class GenerateRequest(_Common):
    """One render as a client asks for it. Give width and height, or aspect and short side; frames, or seconds."""

    width: Side | None = Field(None, description="pixels")
    height: Side | None = Field(None, description="pixels")
    aspect: Aspect | None = Field(None, description='like "16:9", from 1:4 to 4:1')
    short_side: ShortSide | None = Field(None, description="pixels; snaps")
    frames: Frames | None = Field(None, description=f"at {FPS} a second")
    seconds: Seconds | None = Field(None, description="snaps up")
    seed: Seed | None = Field(None, description="drawn when left out")

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if (self.width is None) != (self.height is None):
            raise ValueError("width and height go together: give both, or an aspect and a short side")
        if self.width is not None and (self.aspect or self.short_side):
            raise ValueError("aspect and short_side choose the size: leave them out beside width and height")
        if self.frames is not None and self.seconds is not None:
            raise ValueError("seconds choose the frames: give one of the two")
        return self

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> Self:
        """Check untyped fields. Raises RequestInvalid with a line for each that is wrong."""
        try:
            return cls.model_validate(fields)
        except ValidationError as exc:
            raise RequestInvalid(_explain(exc, cls)) from exc

    def resolve(self) -> ResolvedRequest:
        """Decide what was left open: snap sizes and duration, draw a seed."""
        width, height = self._size()
        return ResolvedRequest(
            **self.model_dump(include=set(_Common.model_fields)),
            width=width,
            height=height,
            frames=self.frames or snap_frames(self.seconds or DEFAULT_SECONDS),
            seed=secrets.randbelow(2**32) if self.seed is None else self.seed,
        )

    def _size(self) -> tuple[int, int]:
        if self.width is not None and self.height is not None:
            return self.width, self.height
        return snap_size(self.aspect or DEFAULT_ASPECT, self.short_side or DEFAULT_SHORT_SIDE)


def parse_resolved(fields: object) -> ResolvedRequest:
    """Check what came out of a queue. Raises RequestInvalid, and RequestTooNew for a later version's."""
    version = fields.get("version", VERSION) if isinstance(fields, dict) else VERSION
    if isinstance(version, int) and version > VERSION:
        raise RequestTooNew(f"the request has version {version}; this program reads {VERSION}: upgrade it")
    try:
        return ResolvedRequest.model_validate(fields)
    except ValidationError as exc:
        raise RequestInvalid(_explain(exc, ResolvedRequest)) from exc


def snap_frames(seconds: float) -> int:
    """The shortest valid frame count that lasts at least `seconds`."""
    clips = math.ceil((seconds * FPS - TAIL_FRAMES) / CLIP_FRAMES)
    return CLIP_FRAMES * max(clips, 1) + TAIL_FRAMES


def snap_size(aspect: str, short_side: int) -> tuple[int, int]:
    """Width and height in whole steps for an aspect, scaled down to the largest area the model was trained on."""
    ratio = float(aspect.partition(":")[0]) / float(aspect.partition(":")[2])
    width, height = (short_side * ratio, short_side) if ratio >= 1 else (short_side, short_side / ratio)
    scale = min(1.0, math.sqrt(LARGEST_AREA / (width * height)))
    return _nearest_side(width * scale), _nearest_side(height * scale)


def _nearest_side(pixels: float) -> int:
    return max(1, round(pixels / SIDE_STEP)) * SIDE_STEP


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for each wrong field: its name, its value, the remedy."""
    return "\n".join(explain_field(entry, model) for entry in error.errors())


def explain_field(entry: ErrorDetails, model: type[BaseModel] = GenerateRequest) -> str:
    """One line for a wrong field. Of its value it uses no more than how that begins to be written, and its length."""
    field = ".".join(str(part) for part in entry["loc"])[:MOST_SHOWN]
    match entry["type"]:
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden":
            return f"{field} {_show(entry['input'])} is not a field of a request{_suggest(field, model)}"
        case "string_too_long":
            return f"{field} has {len(entry['input'])} letters; at most {entry['ctx']['max_length']} do"
        case "greater_than_equal":
            return f"{field} {_show(entry['input'])} is too small; nearest: {_tell_bound(entry['ctx']['ge'])}"
        case "less_than_equal":
            return f"{field} {_show(entry['input'])} is too large; nearest: {_tell_bound(entry['ctx']['le'])}"
        case "greater_than":
            return f"{field} {_show(entry['input'])} is too small; give more than {_tell_bound(entry['ctx']['gt'])}"
    remedy = entry["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    return f"{field} {_show(entry['input'])} {remedy}" if field else remedy


def _show(value: object) -> str:
    """Its beginning: whoever wrote it may have written megabytes."""
    return _SHORT.repr(value)


def _tell_bound(bound: float) -> str:
    """As a valid value, also where that is an upper bound with many digits."""
    return str(int(bound)) if bound == int(bound) else f"{math.floor(bound * 100) / 100:.2f}"


def _suggest(name: str, model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(name, model.model_fields, n=1)
    return f"; did you mean {close[0]}?" if close else f"; fields are {', '.join(model.model_fields)}"
