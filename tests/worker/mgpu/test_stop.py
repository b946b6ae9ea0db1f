"""Cooperative stop: the caller asks, every rank finds out between the same two steps, the fleet stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.worker.mgpu.runners import CommandRunner
from tests.worker.mgpu.test_jobs import values
from worker.mgpu import MGPUController, State

STEPS = 6


class Stepper(CommandRunner):
    """At each boundary between two steps it waits until the caller has asked for what follows the `gate`."""

    def walk(self) -> Iterator[Any]:
        for step in range(STEPS + 1):
            yield "gate", step, bytes(LIMIT_BYTES)
            yield "open", step, bytes(LIMIT_BYTES)
            if self.stop_requested():
                yield "last word", step, self.stop_reason
                return step
            if step < STEPS:
                yield "step", step, None
        return "done"


LIMIT_BYTES = 1 << 10  # a gate alone exceeds it: what follows is sent when the gate was read


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    sizes = (1, 2, 4) if metafunc.config.getoption("full") else (1, 3)
    metafunc.parametrize("stepper", sizes, indirect=True, scope="module")


@pytest.fixture(scope="module")
def stepper(request: pytest.FixtureRequest) -> Iterator[MGPUController]:
    controller = MGPUController(Stepper, num_gpus=request.param, backend="gloo", max_buffered_bytes=LIMIT_BYTES)
    controller.start(timeout=60)
    yield controller
    controller.shutdown()
    assert controller.status().state is State.STOPPED


@pytest.mark.parametrize("boundary", range(STEPS + 1))
def test_a_stop_at_a_boundary_is_seen_there_by_every_rank(stepper: MGPUController, boundary: int) -> None:
    """Cooperative stop: no rank does a step more or less than the others; all may speak once more."""
    stream = stepper.stream(command="walk")
    told: list[tuple[int, str, int]] = []

    def read() -> Iterator[None]:
        returned.extend((yield from stream))

    returned: list[object] = []
    for what, step, reason in read():
        told.append((stream.last_rank, what, step))
        if (stream.last_rank, what, step) == (0, "gate", boundary):
            stream.request_stop("the pod is leaving")
        assert what != "last word" or reason == "the pod is leaving"
    ranks = range(len(returned))
    assert returned == [boundary for _ in ranks]
    for rank in ranks:
        assert [step for who, what, step in told if (who, what) == (rank, "step")] == list(range(boundary))
        assert (rank, "last word", boundary) in told
    assert stepper.status().state is State.IDLE


def test_without_a_request_all_steps_are_done(stepper: MGPUController) -> None:
    """Cooperative stop: and the one of an earlier job is forgotten."""
    assert set(values(stepper.stream(command="walk"))) == {"done"}
