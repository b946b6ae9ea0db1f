"""What workers can serve, and what a request needs: matched before a job is taken."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from jobs.request import VERSION, Attention, Mode, Precision, ResolvedRequest


def _known(names: type[StrEnum]) -> BeforeValidator:
    """What only a later version knows, no request of this one names: the rest of the offer is good all the same."""

    def leave_out_others(told: object) -> object:
        return [one for one in told if one in list(names)] if isinstance(told, list | tuple) else told

    return BeforeValidator(leave_out_others)


class Offer(BaseModel):
    """What one worker has loaded."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer worker may say more

    model_digest: str = ""
    modes: tuple[Mode, ...] = tuple(Mode)
    precisions: Annotated[tuple[Precision, ...], _known(Precision)] = tuple(Precision)
    attentions: Annotated[tuple[Attention, ...], _known(Attention)] = tuple(Attention)
    world_size: int = 1
    most_pixels: int | None = None  # of all frames together; more would not fit its memory
    request_version: int = VERSION  # the latest that it reads
    queues: tuple[str, ...] | None = None  # that it serves; None: not told

    def missing(self, request: ResolvedRequest, queue: str | None = None) -> str:
        """What the request needs and this worker lacks, in words; empty if it can serve it."""
        if queue is not None and self.queues is not None and queue not in self.queues:
            return f"queue {queue}"
        if request.version > self.request_version:
            return f"requests of version {request.version}"
        if request.mode not in (Mode.AUTO, *self.modes):
            return f"mode {request.mode}"
        if request.precision not in (Precision.AUTO, *self.precisions):
            return f"precision {request.precision}"
        if request.attention not in (Attention.AUTO, *self.attentions):
            return f"attention {request.attention}"
        if self.most_pixels is not None and count_pixels(request) > self.most_pixels:
            return f"memory for {request.width}x{request.height}, {request.frames} frames"
        return ""

    def limited_to(self, most_pixels: int) -> "Offer":
        """At most this, whatever was predicted."""
        limit = most_pixels if self.most_pixels is None else min(most_pixels, self.most_pixels)
        return self.model_copy(update={"most_pixels": limit})


def count_pixels(request: ResolvedRequest) -> int:
    """Of all frames together."""
    return request.width * request.height * request.frames
