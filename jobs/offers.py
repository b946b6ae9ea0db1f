"""What workers can serve, and what a request needs: matched before a job is taken."""

from typing import Self, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from redis import Redis

from jobs.request import Mode, Precision, ResolvedRequest

OFFER_FIELD = "h3_offer"  # on RQ's record of a worker, which expires with it


class Offer(BaseModel):
    """What one worker has loaded."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer worker may say more

    model_digest: str = ""
    modes: tuple[Mode, ...] = tuple(Mode)
    precisions: tuple[Precision, ...] = tuple(Precision)
    world_size: int = 1
    most_pixels: int | None = None  # of all frames together; more would not fit its memory
    queues: tuple[str, ...] | None = None  # that it serves; None: not told

    def missing(self, request: ResolvedRequest, queue: str | None = None) -> str:
        """What the request needs and this worker lacks, in words; empty if it can serve it."""
        if queue is not None and self.queues is not None and queue not in self.queues:
            return f"queue {queue}"
        if request.mode not in (Mode.AUTO, *self.modes):
            return f"mode {request.mode}"
        if request.precision not in (Precision.AUTO, *self.precisions):
            return f"precision {request.precision}"
        if self.most_pixels is not None and count_pixels(request) > self.most_pixels:
            return f"memory for {request.width}x{request.height}, {request.frames} frames"
        return ""

    @classmethod
    def parse(cls, text: str | bytes) -> Self | None:
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


def count_pixels(request: ResolvedRequest) -> int:
    """Of all frames together."""
    return request.width * request.height * request.frames


def read_offers(redis: Redis) -> list[Offer]:
    """Of every worker that is alive."""
    with redis.pipeline(transaction=False) as pipeline:
        for worker in redis.smembers("rq:workers"):
            pipeline.hget(cast(bytes, worker).decode("utf-8", "surrogateescape"), OFFER_FIELD)
        told = pipeline.execute(raise_on_error=False)
    return [offer for text in told if isinstance(text, bytes) and (offer := Offer.parse(text))]


def explain_waiting(request: ResolvedRequest, queue: str, offers: list[Offer]) -> str:
    """Why nobody will take a job as things are; empty if somebody can."""
    missing = [offer.missing(request, queue) for offer in offers]
    if not all(missing):
        return ""
    return f"waiting: no worker with {' or '.join(sorted(set(missing)))}" if missing else "waiting: no worker is alive"
