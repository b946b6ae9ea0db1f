"""A rank whose device computes wrong, or that gets wrong sums from its peers, is found before any job depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from worker.mgpu import MGPUController, MGPURunner, StartError

Make = Callable[..., MGPUController]


class Spoiled(MGPURunner):
    """On one rank, from its setup on, something is wrong."""

    def setup(self, *, rank: int, what: str) -> None:
        if self.rank == rank:
            getattr(self, what)()

    def sums_one_too_high(self) -> None:
        add_up = dist.all_reduce

        def wrong(tensor: torch.Tensor, **options: Any) -> None:
            add_up(tensor, **options)
            tensor += 1

        dist.all_reduce = wrong

    def one_wrong_number_in_a_product(self) -> None:
        multiply = torch.Tensor.__matmul__

        def wrong(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            product = multiply(left, right)
            product[17, 3] += 1
            return product

        torch.Tensor.__matmul__ = wrong  # type: ignore[method-assign]

    def no_numbers_in_a_product(self) -> None:
        torch.Tensor.__matmul__ = lambda left, right: torch.full_like(left, torch.nan)  # type: ignore[method-assign]

    def own_settings(self) -> None:
        """As runners of large models have them."""
        torch.set_default_dtype(torch.bfloat16)
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("medium")

    def __call__(self) -> Iterator[Any]:
        yield self.rank


@pytest.mark.parametrize(
    ("world_size", "what", "finding"),
    [
        (2, "sums_one_too_high", "a sum over 2 ranks, on rank 1 gives 4 to 4, not 3"),
        (1, "one_wrong_number_in_a_product", "a product on cpu gives 32640 to 32641, not 32640"),
        (1, "no_numbers_in_a_product", "a product on cpu gives nan to nan, not 32640"),
    ],
)
def test_a_rank_that_gets_something_wrong_is_named_and_the_fleet_does_not_start(
    new_controller: Make, world_size: int, what: str, finding: str
) -> None:
    controller = new_controller(Spoiled, self_test=True)
    with pytest.raises(StartError) as caught:
        controller.start(timeout=60, rank=world_size - 1, what=what)
    assert (caught.value.rank, caught.value.cause_type) == (world_size - 1, "SelfTestError")
    assert finding in str(caught.value)
    assert not controller.is_alive


def test_what_a_runner_has_set_for_itself_is_no_fault(new_controller: Make) -> None:
    controller = new_controller(Spoiled, self_test=True)
    controller.start(timeout=60, rank=1, what="own_settings")
    assert sorted(controller.stream()) == [0, 1]
