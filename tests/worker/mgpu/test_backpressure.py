"""A rank waits while its caller does not read, and behind what it only lends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.waiting import eventually
from tests.worker.mgpu.runners import CommandRunner
from worker.mgpu import Borrowed, JobTimeoutError, MGPUController

Make = Callable[..., MGPUController]
MIB = 1 << 20


class Torrent(CommandRunner):
    """Yields far more than the caller reads; what it has yielded so far is in `status()`."""

    def pour(self, times: int, size_bytes: int) -> Iterator[Any]:
        for number in range(times):
            yield torch.full((size_bytes,), number % 256, dtype=torch.uint8)

    def count_silently(self, upto: int) -> Iterator[Any]:
        yield from range(upto)

    def lend(self, times: int) -> Iterator[Any]:
        for number in range(times):
            yield {"lent": Borrowed(torch.full((3,), number))}


@pytest.fixture(scope="module")
def narrow() -> Iterator[tuple[MGPUController, list[str]]]:
    """A fleet that may have 4 MiB of each rank unread, and what it logs."""
    lines: list[str] = []
    controller = MGPUController(
        Torrent, num_gpus=2, backend="gloo", max_buffered_bytes=4 * MIB, logs_specs=lambda _, line: lines.append(line)
    )
    controller.start(timeout=60)
    yield controller, lines
    controller.shutdown()


def yields_of(controller: MGPUController) -> list[int]:
    return [rank.yields for rank in controller.status().ranks]


def settled_yields(controller: MGPUController) -> list[int]:
    """Once every rank waits in its yield."""
    eventually(lambda: len(controller._supervisor.job.waits) == 2)
    return yields_of(controller)


def test_an_unread_stream_does_not_grow_without_bound(narrow: tuple[MGPUController, list[str]]) -> None:
    """39: the rank waits, says so once, and goes on when it is read; nothing is lost and nothing reordered."""
    controller, lines = narrow
    for _ in range(2):
        stream = controller.stream(command="pour", times=64, size_bytes=MIB)
        assert all(yields <= 5 for yields in settled_yields(controller))
        received: dict[int, list[int]] = {0: [], 1: []}
        for tensor in stream:
            received[stream.last_rank].append(int(tensor[0]))
        assert received == {0: list(range(64)), 1: list(range(64))}
    assert sum("waits in its yield" in line for line in lines) == 2  # once per rank, not per job


def test_small_items_count_too(narrow: tuple[MGPUController, list[str]]) -> None:
    """39: a million unread numbers are half a gigabyte of objects in the caller."""
    controller, _ = narrow
    stream = controller.stream(command="count_silently", upto=50_000)
    assert all(yields < 10_000 for yields in settled_yields(controller))
    assert sum(1 for _ in stream) == 100_000


def test_drain_frees_a_rank_that_waits(narrow: tuple[MGPUController, list[str]]) -> None:
    """37, 39"""
    controller, _ = narrow
    stream = controller.stream(command="pour", times=32, size_bytes=MIB)
    settled_yields(controller)
    stream.drain()
    assert controller.status().job_id is None


def test_what_a_rank_on_the_cpu_lends_is_a_copy(narrow: tuple[MGPUController, list[str]]) -> None:
    """53"""
    controller, _ = narrow
    items = [
        (stream_rank, item["lent"]) for stream_rank, item in with_ranks(controller.stream(command="lend", times=3))
    ]
    assert sorted((rank, tensor.tolist()) for rank, tensor in items) == [
        (rank, [number] * 3) for rank in (0, 1) for number in range(3)
    ]


def with_ranks(stream: Any) -> Iterator[tuple[int, Any]]:
    for item in stream:
        yield stream.last_rank, item


def test_waiting_for_the_caller_counts_against_the_job_timeout(new_fleet: Make) -> None:
    """39, 73: and the error says where the ranks stand."""
    controller = new_fleet(Torrent, num_gpus=1, max_buffered_bytes=MIB)
    stream = controller.stream(command="pour", times=32, size_bytes=MIB, timeout=1.0)
    eventually(lambda: not controller.is_alive, timeout_s=3)
    received = []
    with pytest.raises(JobTimeoutError) as caught:
        received.extend(stream)
    assert received
    assert any("tell_item" in path.read_text() for path in caught.value.evidence if path.suffix == ".stacks")


def test_a_forced_shutdown_frees_ranks_that_wait_for_a_caller_that_is_gone(
    narrow: tuple[MGPUController, list[str]],
) -> None:
    """38, 39, 78: the end of the fleet of the tests above."""
    controller, _ = narrow
    with ThreadPoolExecutor(1) as pool:
        pool.submit(controller.stream, command="pour", times=32, size_bytes=MIB).result()
    settled_yields(controller)
    began = time.monotonic()
    controller.shutdown(graceful_timeout=0)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("limit", [0, -1])
def test_an_impossible_limit_is_refused(new_controller: Make, limit: int) -> None:
    """39"""
    with pytest.raises(ValueError, match="max_buffered_bytes must be positive"):
        new_controller(max_buffered_bytes=limit)
