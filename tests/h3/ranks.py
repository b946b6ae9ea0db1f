"""Runs a function on real rank processes over Gloo, as tests of collectives need it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from worker.mgpu import MGPUController, MGPURunner

Check = Callable[..., None]


class CheckRunner(MGPURunner):
    """Each job is a call of a function with the group and its arguments."""

    def __call__(self, *, check: Check, arguments: tuple[object, ...]) -> Iterator[None]:
        check(self.groups.transformer_group, *arguments)
        yield


@contextmanager
def running_ranks(world_size: int) -> Iterator[Check]:
    """Gives a function that calls `check(group, *arguments)` on every rank; what any of them raises fails the test."""
    with MGPUController(CheckRunner, num_gpus=world_size, backend="gloo", collective_timeout=60) as controller:
        controller.start()

        def call(check: Check, *arguments: object) -> None:
            for _ in controller.stream(check=check, arguments=arguments, timeout=60):
                pass

        yield call
