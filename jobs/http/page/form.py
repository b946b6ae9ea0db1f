"""The form that asks for a render: what it shows, and what its fields, which a browser sends as text, ask for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jobs.errors import PictureInvalid, RequestInvalid
from jobs.http.wishes import parse_wish
from jobs.queues import QueueName
from jobs.request import (
    DEFAULT_ASPECT,
    DEFAULT_SECONDS,
    DEFAULT_SHORT_SIDE,
    FPS,
    MOST_FRAMES,
    GenerateRequest,
    ResolvedRequest,
    snap_size,
)

ASPECTS = {
    "16:9": "16:9 wide",
    "9:16": "9:16 upright",
    "1:1": "1:1 square",
    "4:3": "4:3",
    "3:4": "3:4 upright",
    "21:9": "21:9 cinema",
}
SIZES = (256, 480, 576, 768)
QUEUES = {
    QueueName.HIGH: "high: first",
    QueueName.DEFAULT: "default",
    QueueName.BATCH: "batch: when nothing else waits",
}
MOST_SECONDS = math.floor(MOST_FRAMES / FPS * 100) / 100
DEFAULT_STEPS = int(GenerateRequest.model_fields["steps"].default)
_PICTURES = ("first_frame", "last_frame")
_FIELDS = ("aspect", "seconds", "short_side", "steps", "seed", "queue", *_PICTURES)
_RARE = ("steps", "seed", "queue", *_PICTURES)  # of the folded part
_WORDS = {"a valid integer": "a whole number", "a valid number": "a number"}  # of pydantic, and of people


@dataclass(frozen=True, slots=True)
class RenderForm:
    """The form as it is shown: texts as somebody typed them, and what is wrong with them."""

    prompt: str = ""
    aspect: str = DEFAULT_ASPECT
    seconds: str = f"{DEFAULT_SECONDS:g}"
    short_side: str = str(DEFAULT_SHORT_SIDE)
    steps: str = str(DEFAULT_STEPS)
    seed: str = ""
    queue: str = QueueName.DEFAULT
    first_frame: str = ""  # key of a picture that lies in the store
    last_frame: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)  # by field; "" for what belongs to none

    @property
    def aspects(self) -> Mapping[str, str]:
        return ASPECTS if self.aspect in ASPECTS else {self.aspect: f"{self.aspect}, as it was"} | ASPECTS

    @property
    def sizes(self) -> tuple[str, ...]:
        known = tuple(map(str, SIZES))
        return known if self.short_side in known else (self.short_side, *known)

    @property
    def is_unfolded(self) -> bool:
        """Whether the part that few need says something."""
        plain = RenderForm()
        return any(name in self.errors or getattr(self, name) != getattr(plain, name) for name in _RARE)

    def with_errors(self, errors: Mapping[str, str]) -> "RenderForm":
        return replace(self, errors=errors)

    def to_fields(self) -> dict[str, object]:
        """For `parse_wish`. What is empty is left out: then it is as always."""
        given = {name: getattr(self, name).strip() for name in _FIELDS}
        chosen = {name: text for name, text in given.items() if text}
        if "seconds" in chosen:
            chosen["seconds"] = chosen["seconds"].replace(",", ".")  # as half of Europe writes it
        return {**chosen, "prompt": self.prompt}


def parse_form(fields: Mapping[str, object]) -> RenderForm:
    """What a browser has sent; fields that are missing are as in an empty form."""
    plain = RenderForm()

    def read(name: str) -> str:
        return str(fields.get(name, getattr(plain, name)))

    return RenderForm(
        prompt=read("prompt"),
        aspect=read("aspect"),
        seconds=read("seconds"),
        short_side=read("short_side"),
        steps=read("steps"),
        seed=read("seed"),
        queue=read("queue"),
        first_frame=read("first_frame"),
        last_frame=read("last_frame"),
    )


def find_errors(form: RenderForm, uploads: Mapping[str, bytes]) -> dict[str, str]:
    """All that is wrong, by field; "" for what belongs to none. Nothing if it can be submitted."""
    errors: dict[str, str] = {}
    fields, pictures = form.to_fields(), dict(uploads)
    # Some are checked only when others are right: so what is wrong is left out, and the rest is looked at again.
    while new := _check(fields, pictures):
        errors = new | errors
        if not new.keys() & (fields.keys() | pictures.keys()):
            break
        fields = {"prompt": "any"} | {name: value for name, value in fields.items() if name not in new}
        pictures = {name: picture for name, picture in pictures.items() if name not in new}
    return errors


def _check(fields: Mapping[str, object], pictures: Mapping[str, bytes]) -> dict[str, str]:
    try:
        parse_wish(fields, pictures)
    except (RequestInvalid, PictureInvalid) as exc:
        return _sort_errors(str(exc))
    return {}


def _sort_errors(text: str) -> dict[str, str]:
    """Of a RequestInvalid's lines or a PictureInvalid's text, which begin with their field."""
    errors: dict[str, str] = {}
    for line in text.splitlines():
        name = line.partition(" ")[0]
        is_field = name in RenderForm.__dataclass_fields__
        errors.setdefault(name if is_field else "", _explain(name, line) if is_field else line)
    return errors


def refill(request: ResolvedRequest, queue: str) -> RenderForm:
    """A form that asks for the same once more."""
    aspect, short_side = _find_size(request)
    return RenderForm(
        prompt=request.prompt,
        aspect=aspect,
        # Down: snapping goes up, to the frames that it came from.
        seconds=f"{math.floor(request.frames / FPS * 100) / 100:g}",
        short_side=str(short_side),
        steps=str(request.steps),
        seed=str(request.seed),
        queue=queue if queue in list(QueueName) else QueueName.DEFAULT,
        first_frame=request.first_frame or "",
        last_frame=request.last_frame or "",
    )


def _find_size(request: ResolvedRequest) -> tuple[str, int]:
    """Aspect and short side that snap to its size."""
    size = (request.width, request.height)
    for short_side in (*SIZES, min(size)):
        for aspect in ASPECTS:
            if snap_size(aspect, short_side) == size:
                return aspect, short_side
    return f"{request.width}:{request.height}", min(size)


def _explain(name: str, line: str) -> str:
    """For a person who sees the field, so without its name."""
    if name == "prompt" and " is empty" in line:
        return "Say what should be seen and heard."
    for words, ours in _WORDS.items():
        line = line.replace(words, ours)
    return line.removeprefix(f"{name} ")
