"""An attempt that others end: the fleet is a real one of one rank."""

import threading

import pytest

from jobs.request import GenerateRequest
from tests.worker.attempts import REQUEST
from tests.worker.runners import Waiting
from worker.attempt import Attempt
from worker.errors import Stalled
from worker.mgpu import MGPUController
from worker.stall import StallWatch


@pytest.fixture
def fleet():
    with MGPUController(Waiting, num_gpus=1, backend="gloo", outputs="cpu") as controller:
        controller.start(checkpoint="none")
        yield controller


def test_an_attempt_that_is_over_does_not_end_the_fleet_of_the_next(fleet, job, store):
    attempt = Attempt(fleet, GenerateRequest.parse(REQUEST).resolve(), StallWatch(), None)
    attempt._end(job.begin(store))
    before = threading.active_count()
    attempt.abort(Stalled("too late"))
    assert fleet.is_alive
    assert threading.active_count() == before  # nobody is about to end it
