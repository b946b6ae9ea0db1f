"""What measuring a row gives: plain values, not yet judged."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from worker.mgpu import AsymmetricRunnerError, FatalFleetError, Stream, SymmetricRunnerError


@dataclass(frozen=True, slots=True)
class Measured:
    figures: tuple[float, ...] = ()  # seconds, or shares of one; one per repetition
    claims: Mapping[str, bool] = field(default_factory=dict)  # what must be true besides
    details: Mapping[str, object] = field(default_factory=dict)  # for the report
    error: str = ""  # why it could not be measured


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended for its caller."""

    items: tuple[object, ...]
    error: Exception | None
    at: float  # time.monotonic(), which all processes of a machine share


def read_to_end(stream: Stream) -> Ending:
    items, error = [], None
    try:
        for item in stream:
            items.append(item)  # noqa: PERF402  # what came before an error counts
    except (FatalFleetError, SymmetricRunnerError, AsymmetricRunnerError) as exc:
        error = exc
    return Ending(tuple(items), error, time.monotonic())
