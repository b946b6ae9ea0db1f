"""A contender's ranks: started beside those of the others, on the same GPUs, and asked one thing at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from h3.denoise_fleet import plain_rank_errors, require_devices, starting_ranks
from worker.mgpu import MGPUController, MGPURunner

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class BenchFleet:
    """Ranks that answer one thing at a time."""

    controller: MGPUController

    def ask(self, ask: object, kind: type[Answer]) -> Answer:
        """The one answer of that kind. Raises ConfigError for what every rank refuses, RanksFailed."""
        [answer] = self.hear(kind, ask=ask)
        return answer

    def hear(self, kind: type[Answer], **job: Any) -> list[Answer]:
        """All answers of that kind to a job with these keywords. Raises as `ask` does."""
        with plain_rank_errors():
            return [item for item in self.controller.stream(**job) if isinstance(item, kind)]


@contextmanager
def running(runner: type[MGPURunner], world_size: int, *, on_gpus: bool, **setup: Any) -> Iterator[BenchFleet]:
    """Start ranks and load. Raises ConfigError, RanksFailed and what loading raises."""
    require_devices(world_size, on_gpus=on_gpus)
    # On the GPUs of the other contenders, which wait meanwhile.
    with starting_ranks(runner, world_size, on_gpus=on_gpus, allow_shared=True, **setup) as controller:
        yield BenchFleet(controller)
