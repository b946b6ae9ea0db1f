"""The debug mode that names the first rank out of step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.worker.mgpu.runners import CommandRunner
from worker.mgpu import AsymmetricRunnerError, FleetDesyncError, MGPUController, SymmetricRunnerError
from worker.mgpu.lockstep import Step, describe_divergence

Make = Callable[..., MGPUController]


class Strider(CommandRunner):
    def stride(self, steps: dict[int, int]) -> Iterator[Any]:
        yield from range(steps.get(self.rank, 3))

    def confirm(self, words: list[bytes]) -> Iterator[Any]:
        self.confirm_alike(words[self.rank])
        yield self.rank


def test_ranks_in_lockstep_pass_the_check_and_the_first_out_of_step_is_named(new_fleet: Make) -> None:
    """77: at the yield where it happened; however jobs end, and an asymmetric refusal is told as ever."""
    world_size = 3  # of two ranks, neither is the majority
    controller = new_fleet(Strider, check_lockstep=True, num_gpus=world_size)
    assert len(list(controller.stream(command="stride", steps={}))) == 3 * world_size
    with pytest.raises(SymmetricRunnerError):
        list(controller.stream(command="refuse", kind="value"))
    with pytest.raises(AsymmetricRunnerError):
        list(controller.stream(command="refuse", kind="value", ranks=[1]))
    assert len(list(controller.stream(command="stride", steps={}))) == 3 * world_size
    received = []
    with pytest.raises(
        FleetDesyncError, match="rank 1 is the first out of step: it ended after 2 yields in job 5"
    ) as caught:
        received.extend(controller.stream(command="stride", steps={1: 2}))
    assert sorted(received) == [0] * world_size + [1] * world_size
    assert "rank 0 yielded again after 2 yields" in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([(1, 0, 0), (1, 1, 0), (1, 1, 0)], "rank 0 is the first"),
        ([(1, 3, 0), (1, 3, 1)], "rank 1 is the first out of step: it ended after 3 yields in job 1, while rank 0"),
        ([(2, 0, 0), (2, 0, 0), (1, 9, 1)], "rank 2 is the first out of step: it ended after 9 yields in job 1"),
    ],
)
def test_the_majority_is_right(steps: list[tuple[int, int, int]], named: str) -> None:
    """77"""
    assert describe_divergence([Step(*step) for step in steps]).startswith(named)


def test_ranks_with_the_same_result_go_on_and_one_with_another_ends_the_job_before_anything_is_said(
    new_fleet: Make,
) -> None:
    controller = new_fleet(Strider)
    assert sorted(controller.stream(command="confirm", words=[b"same", b"same"])) == [0, 1]
    with pytest.raises(FleetDesyncError, match="rank 1 is the first to have diverged: it has b'that', rank 0 b'this'"):
        list(controller.stream(command="confirm", words=[b"this", b"that"]))


def test_unequal_yields_are_legal_and_a_job_that_does_not_go_on_is_ended_with_what_its_ranks_do(
    new_fleet: Make,
) -> None:
    """77: unequal counts, unless asked to check."""
    controller = new_fleet(Strider)
    assert len(list(controller.stream(command="stride", steps={0: 5, 1: 2}))) == 7
    ended = controller.stream(command="nothing")
    ended.drain()
    stream = controller.stream(command="hang")
    ended.condemn("it has ended")
    stream.condemn("no step for 5 s")
    with pytest.raises(FleetDesyncError, match="no step for 5 s") as caught:
        list(stream)
    assert {"rank0.stacks", "rank1.stacks"} <= {path.name for path in caught.value.evidence}
