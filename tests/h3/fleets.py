"""Real ranks with the runner that a worker loads, and what their renders yield."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from h3.runner import H3Runner
from jobs.request import ResolvedRequest
from worker.items import Item, Resume
from worker.mgpu import MGPUController

Kind = TypeVar("Kind", bound=Item)


@contextmanager
def running_fleet(model: Path, world_size: int, **setup: str) -> Iterator[MGPUController]:
    with MGPUController(H3Runner, num_gpus=world_size, backend="gloo", outputs="cpu") as controller:
        controller.start(checkpoint=str(model), **setup)
        yield controller


def of(items: list[Item], kind: type[Kind]) -> list[Kind]:
    return [item for item in items if isinstance(item, kind)]


def stop_after(
    fleet: MGPUController,
    folder: Path,
    seen: Callable[[Item], bool],
    request: ResolvedRequest,
    resume: Resume | None = None,
) -> list[Item]:
    """What a render yields that is asked to stop once it has yielded this."""
    stream, items = fleet.stream(request=request, work_dir=str(folder), resume=resume), []
    for item in stream:
        items.append(item)
        if seen(item):
            stream.request_stop()
    return items
