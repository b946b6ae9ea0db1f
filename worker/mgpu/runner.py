"""The seam: what a runner gets, yields and raises."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup

from worker.mgpu.errors import RunnerError

__all__ = ["Borrowed", "MGPURunner", "NCCLGroups", "RunnerError", "require_runner_class"]


@dataclass(frozen=True, slots=True)
class NCCLGroups:
    """A process group for each component of a pipeline. Each spans all ranks; under Gloo they are Gloo groups.

    With the controller's share_groups=True, its default, the three are one group.
    """

    transformer_group: ProcessGroup
    vae_group: ProcessGroup
    text_group: ProcessGroup

    @property
    def gemma_group(self) -> ProcessGroup:
        """`text_group` under the name that LTX-2's runners use."""
        return self.text_group


@dataclass(frozen=True, slots=True)
class Borrowed:
    """Yield this in place of a CUDA tensor, or inside of what you yield, to spare its copy.

    The caller gets the tensor itself, over the rank's memory; `yield` returns when the caller asks for its next
    element, and from then on the rank may overwrite the memory. A CPU tensor is copied as ever.
    """

    tensor: torch.Tensor


class MGPURunner(ABC):
    """What every rank runs, in lockstep. One instance per rank, built before the process group exists.

    The attributes below are there from `setup` on. Nothing is reset between jobs: inference mode, random
    generators, the default dtype and the grad mode are the runner's business.
    """

    rank: int
    world_size: int
    device: torch.device
    devices: Sequence[torch.device]  # of every rank, in rank order
    groups: NCCLGroups
    stop_reason: str | None = None  # why the caller asked this job to stop, once stop_requested() has said so
    _read_stop: Callable[[], str | None]
    _peek_stop: Callable[[], str | None]
    _require_alike: Callable[[bytes], None]

    def setup(self, *args: Any, **kwargs: Any) -> None:  # noqa: B027  # optional: a runner may need none
        """Load what all jobs share. Runs once, on every rank, with the keywords of `MGPUController.start`."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Run one job: a generator, with the keywords of `MGPUController.stream`."""

    def teardown(self) -> None:  # noqa: B027  # optional
        """Let go of what `setup` took. Runs once, on every rank, in an orderly shutdown."""

    def stop_requested(self) -> bool:
        """Whether the caller asked this job to end early. Collective: every rank must call it, all get one answer."""
        self.stop_reason = self.stop_reason or self._read_stop()
        return self.stop_reason is not None

    def confirm_alike(self, word: bytes) -> None:
        """See that every rank is at the same place with the same result, before one speaks for all.

        Collective, beside the process groups. Ends the job with a FleetDesyncError unless all ranks give the same word,
        of the same length, of at most 4 KiB.
        """
        self._require_alike(word)

    def stop_pending(self) -> bool:
        """The same for rank 0 alone, when the others have ended their part of the job. Not collective."""
        self.stop_reason = self.stop_reason or self._peek_stop()
        return self.stop_reason is not None


def require_runner_class(runner_cls: object) -> None:
    """Raises TypeError for what can be seen to be no runner, before a process is spent on it."""
    if not (isinstance(runner_cls, type) and issubclass(runner_cls, MGPURunner)):
        raise TypeError(f"runner_cls must be a subclass of MGPURunner, got {runner_cls!r}")
    if inspect.isabstract(runner_cls):
        missing = ", ".join(sorted(runner_cls.__abstractmethods__))
        raise TypeError(f"{runner_cls.__qualname__} is still abstract: it lacks {missing}")
    if _is_plainly_not_a_generator(inspect.unwrap(runner_cls.__call__)):
        raise TypeError(f"{runner_cls.__qualname__}.__call__ must be a generator function: `yield`, even once")


def _is_plainly_not_a_generator(function: object) -> bool:
    # A decorator without functools.wraps hides what it wraps: then the rank finds out, at the first job.
    named_as_written = inspect.isfunction(function) and function.__name__ == "__call__"
    return named_as_written and not inspect.isgeneratorfunction(function)
