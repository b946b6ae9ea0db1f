"""How long renders take, as workers have measured it, and what that says of one that has not begun.

Only whole renders are recorded: what went on from a checkpoint took less than its size takes. A class of renders is
what fixes the cost: size, frames, steps, and what it ran on. The prompt, pictures and previews change it by percents,
and are left out.

A size that has not been measured often is judged by its neighbours. A step costs tokens x (1 + tokens / 30,000): most
of it grows with the tokens, attention with their square, and at 30,000 the two are equal. That constant is by the bf16
steps in docs/performance.md: 17,780 and 38,010 tokens, 1.72 and 5.24 s.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from jobs.offers import Offer, count_pixels
from jobs.operation import Call, Operation, pipeline, run
from jobs.request import (
    CLIP_FRAMES,
    SIDE_STEP,
    TAIL_FRAMES,
    Attention,
    GenerateRequest,
    Mode,
    Precision,
    ResolvedRequest,
)

CLASSES_KEY = "h3:render-classes"  # labels, the one measured last first: a list needs no clock
TIMES_KEY = "h3:render-times:{label}"  # seconds, the latest first
KEPT_S = 90 * 24 * 3600  # since the latest of its class
MOST_TIMES, MOST_CLASSES = 50, 500
FEWEST_TIMES = 5  # of its own size, by which a render is judged alone
FARTHEST = 8.0  # in work: beyond, what does not grow with it (text, uploads) would be multiplied, or lost
DEFAULT_PACE_S = 0.04  # a megapixel of a frame, a step: one H200 in bf16 at 1344x768, 124 frames
LEAST_S = 1.0  # of an estimate: no render is for nothing
MOST_S = 1e7  # of a recorded one

_CLIP_LATENTS, _TAIL_LATENTS = 5, 2  # 17n + 5 frames are 5n + 2 latent frames
_EVEN_TOKENS = 30_000  # at which attention costs as much as all else
_DIGEST_LETTERS = 16

Choice = TypeVar("Choice", Mode, Precision)


@dataclass(frozen=True, slots=True)
class RenderClass:
    """Renders that cost the same. What a worker's offer leaves open stays `auto`."""

    width: int
    height: int
    frames: int
    steps: int
    mode: Mode
    precision: Precision
    attention: Attention
    world_size: int
    model_digest: str  # its beginning; empty if the runner does not tell

    @classmethod
    def of(cls, request: ResolvedRequest, offer: Offer, attention: Attention = Attention.AUTO) -> Self:
        """attention  that the worker computes where the request names none"""
        return cls(
            request.width,
            request.height,
            request.frames,
            request.steps,
            _resolve(request.mode, offer.modes, Mode.AUTO),
            _resolve(request.precision, offer.precisions, Precision.AUTO),
            attention if request.attention is Attention.AUTO else request.attention,
            offer.world_size,
            offer.model_digest[:_DIGEST_LETTERS],
        )

    @classmethod
    def parse(cls, label: bytes) -> Self | None:
        """What `label` gives; None for anything else, and for what only a later version knows."""
        try:
            size, mode, precision, attention, world_size, digest = label.decode().split("/", 5)
            width, height, frames, steps = map(int, size.split("x"))
            ran = Mode(mode), Precision(precision), Attention(attention)
            parsed = cls(width, height, frames, steps, *ran, int(world_size), digest)
        except ValueError:
            return None
        is_render = min(width, height) >= SIDE_STEP and frames >= TAIL_FRAMES and steps >= 1
        return parsed if is_render and parsed.label.encode() == label else None

    @property
    def label(self) -> str:
        size = f"{self.width}x{self.height}x{self.frames}x{self.steps}"
        return f"{size}/{self.mode}/{self.precision}/{self.attention}/{self.world_size}/{self.model_digest}"

    @property
    def work(self) -> float:
        return count_work(self.width, self.height, self.frames, self.steps)

    def suits(self, request: ResolvedRequest) -> bool:
        """Whether it ran on what the request names."""
        return (
            request.mode in (Mode.AUTO, self.mode)
            and request.precision in (Precision.AUTO, self.precision)
            and request.attention in (Attention.AUTO, self.attention)
        )


def _resolve(wanted: Choice, offered: Sequence[Choice], auto: Choice) -> Choice:
    if wanted is not auto:
        return wanted
    return offered[0] if len(offered) == 1 else auto


def count_work(width: int, height: int, frames: int, steps: int) -> float:
    """What a render costs, in tokens and steps; only ratios mean something."""
    latent_frames = (frames - TAIL_FRAMES) // CLIP_FRAMES * _CLIP_LATENTS + _TAIL_LATENTS
    tokens = latent_frames * (width // SIDE_STEP) * (height // SIDE_STEP)
    return steps * tokens * (1 + tokens / _EVEN_TOKENS)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one render: what three of four stay within, and 99 of 100."""

    p75_s: float
    p99_s: float
    samples: int  # that it is drawn from; 0: nothing near it was measured, and both are the configured pace


@dataclass(frozen=True)
class RenderTimes:
    """What has been measured. `pace_s` is for a render that nothing comes near: seconds a megapixel, frame and step."""

    seconds: Mapping[RenderClass, Sequence[float]] = field(default_factory=dict)
    pace_s: float = DEFAULT_PACE_S

    def measured_on(self, world_size: int, model_digest: str = "") -> "RenderTimes":
        """Only what machines of so many ranks have measured, and with that model, if one is named."""
        digest = model_digest[:_DIGEST_LETTERS]
        own = {
            measured: seconds
            for measured, seconds in self.seconds.items()
            if measured.world_size == world_size and digest in ("", measured.model_digest)
        }
        return RenderTimes(own, self.pace_s)

    def estimate(self, request: ResolvedRequest) -> Estimate:
        """By renders of its size; where these are few, also by the nearest sizes, in proportion to their work."""
        measured = self._scale_nearest(request)
        likely = [(max(LEAST_S, seconds), 1) for seconds in measured or [self._guess(request)]]
        return Estimate(percentile(likely, 0.75), percentile(likely, 0.99), len(measured))

    def estimate_unknown(self) -> Estimate:
        """Of a render of which nothing is known: as if it left its size open."""
        return self.estimate(GenerateRequest(prompt="unknown", seed=0).resolve())

    def _guess(self, request: ResolvedRequest) -> float:
        return self.pace_s * count_pixels(request) / 1e6 * request.steps

    def _scale_nearest(self, request: ResolvedRequest) -> list[float]:
        scaled: list[float] = []
        for ratio, seconds in self._group_by_ratio(request):
            if len(scaled) >= FEWEST_TIMES:
                break
            scaled += [each * ratio for each in seconds]
        return scaled

    def _group_by_ratio(self, request: ResolvedRequest) -> Iterator[tuple[float, list[float]]]:
        """What the request's work is to a measured one's, with the times of that; the nearest first.

        Those that ran on something else than the request names are better than a guess, if there are no others.
        """
        work = count_work(request.width, request.height, request.frames, request.steps)
        near = [measured for measured in self.seconds if _distance(work / measured.work) <= FARTHEST]
        groups: dict[float, list[float]] = defaultdict(list)
        for measured in [each for each in near if each.suits(request)] or near:
            groups[work / measured.work] += self.seconds[measured]
        yield from sorted(groups.items(), key=lambda group: _distance(group[0]))


def _distance(ratio: float) -> float:
    return max(ratio, 1 / ratio)


def percentile(weighted: Iterable[tuple[float, float]], share: float) -> float:
    """The least of some values, each with its weight, within which this share of the weight lies."""
    ordered = sorted(weighted)
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 1e-9:
            return value
    raise ValueError("no value has any weight")


# --- in Redis


def record_render(redis: Redis, measured: RenderClass, seconds: float) -> None:
    """Note a whole render. Raises RedisError."""
    label = measured.label
    key = TIMES_KEY.format(label=label)
    with redis.pipeline() as commands:
        commands.lrem(CLASSES_KEY, 0, label)
        commands.lpush(CLASSES_KEY, label)
        commands.ltrim(CLASSES_KEY, 0, MOST_CLASSES - 1)
        commands.expire(CLASSES_KEY, KEPT_S)
        commands.lpush(key, f"{seconds:.3f}")
        commands.ltrim(key, 0, MOST_TIMES - 1)
        commands.expire(key, KEPT_S)
        commands.execute()


def read_render_times(redis: Redis, *, pace_s: float = DEFAULT_PACE_S) -> RenderTimes:
    """What has been measured on this farm. Raises RedisUnavailable."""
    return RenderTimes(run(_read_all(), redis), pace_s)


def _read_all() -> Operation[dict[RenderClass, Sequence[float]]]:
    labels = yield lambda redis: redis.lrange(CLASSES_KEY, 0, MOST_CLASSES - 1)
    classes = [measured for label in labels if (measured := RenderClass.parse(label)) is not None]
    if not classes:
        return {}
    answers = yield pipeline(*map(_ask_times, classes), tolerant=True)
    times = {
        measured: _parse_times(answer)
        for measured, answer in zip(classes, answers, strict=True)
        if not isinstance(answer, RedisError)  # somebody else's key
    }
    return {measured: seconds for measured, seconds in times.items() if seconds}


def _ask_times(measured: RenderClass) -> Call:
    key = TIMES_KEY.format(label=measured.label)
    return lambda redis: redis.lrange(key, 0, MOST_TIMES - 1)


def _parse_times(texts: Iterable[bytes]) -> tuple[float, ...]:
    """Those that are times: anybody may have written there."""
    return tuple(seconds for text in texts if (seconds := _parse_time(text)) > 0)


def _parse_time(text: bytes) -> float:
    """0 for what is none."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < MOST_S else 0.0
