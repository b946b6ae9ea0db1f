"""Streams that nobody reads any more, on the shared fleet."""

from __future__ import annotations

import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.worker.mgpu.conftest import open_descriptors
from worker.mgpu import ControllerBusyError, MGPUController, State, Stream, WrongOwnerError


def dispatch_in_a_thread_that_ends(controller: MGPUController) -> Stream:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(controller.stream, command="count", upto=3).result()


def test_the_job_of_a_thread_that_is_gone_can_be_reclaimed(controller: MGPUController, world_size: int) -> None:
    """38: and read to its end, by whoever took it."""
    stream = dispatch_in_a_thread_that_ends(controller)
    with pytest.raises(ControllerBusyError) as busy:
        controller.stream(command="nothing")
    with pytest.raises(WrongOwnerError):
        next(stream)
    reclaimed = controller.reclaim(busy.value.job_id)
    assert len(list(reclaimed)) == 3 * world_size
    assert controller.status().state is State.IDLE


def test_a_reclaimed_job_goes_on_where_its_owner_stopped(controller: MGPUController, world_size: int) -> None:
    """38: also if the owner had read the ends of some ranks."""

    def read_some() -> int:
        stream = controller.stream(command="count", upto=3)
        for _ in range(3 * world_size - 1):
            next(stream)
        return stream.job_id

    with ThreadPoolExecutor(1) as pool:
        job_id = pool.submit(read_some).result()
    assert len(list(controller.reclaim(job_id))) == 1


def test_a_job_with_an_owner_is_not_taken_away(controller: MGPUController) -> None:
    """38"""
    with controller.stream(command="count", upto=3) as stream:
        with ThreadPoolExecutor(1) as pool, pytest.raises(WrongOwnerError, match="MainThread"):
            pool.submit(controller.reclaim, stream.job_id).result()
        with pytest.raises(ValueError, match="not in flight"):
            controller.reclaim(stream.job_id + 1)
    with pytest.raises(ValueError, match="not in flight; it is none"):
        controller.reclaim(stream.job_id)


def test_a_dropped_stream_is_told_once_and_can_be_reclaimed(
    controller: MGPUController, caplog: pytest.LogCaptureFixture
) -> None:
    """38"""
    job_id = controller.stream(command="count", upto=3).job_id
    gc.collect()
    (record,) = [record for record in caplog.records if "dropped" in record.message]
    assert record.levelno == logging.WARNING
    assert f"reclaim({job_id})" in record.message
    controller.reclaim(job_id).drain()


def test_a_stream_that_was_read_is_dropped_in_silence(
    controller: MGPUController, caplog: pytest.LogCaptureFixture
) -> None:
    """38"""
    controller.stream(command="count", upto=3).drain()
    gc.collect()
    assert not [record for record in caplog.records if "dropped" in record.message]


def test_large_keywords_that_are_pickled_are_named(
    controller: MGPUController, caplog: pytest.LogCaptureFixture
) -> None:
    """50"""
    caplog.set_level(logging.DEBUG, logger="worker.mgpu")
    controller.stream(command="echo", large=bytes(2 << 20), small=bytes(1 << 10)).drain()
    named = [record.message for record in caplog.records if "travels pickled" in record.message]
    assert len(named) == 1
    assert "keyword large" in named[0]


def test_a_thread_may_take_over_from_itself_after_a_transfer_to_one_that_died(controller: MGPUController) -> None:
    """36, 38"""
    stream = controller.stream(command="count", upto=3)
    heir = threading.Thread(target=lambda: None)
    stream.transfer(heir)
    heir.start()
    heir.join()
    controller.reclaim(stream.job_id).drain()


def test_the_old_stream_of_a_reclaimed_job_says_nothing_when_it_goes(
    controller: MGPUController, caplog: pytest.LogCaptureFixture
) -> None:
    """38: and the job stays with its new owner."""
    stream = dispatch_in_a_thread_that_ends(controller)
    reclaimed = controller.reclaim(stream.job_id)
    del stream
    gc.collect()
    assert not [record for record in caplog.records if "dropped" in record.message]
    with ThreadPoolExecutor(1) as pool, pytest.raises(WrongOwnerError):
        pool.submit(controller.reclaim, reclaimed.job_id).result()
    reclaimed.drain()


def test_streams_that_are_kept_after_their_end_hold_no_descriptor(controller: MGPUController) -> None:
    """56, 91"""
    controller.stream(command="echo", x=torch.ones(1)).drain()
    before = open_descriptors()
    kept = []
    for _ in range(20):
        kept.append(controller.stream(command="echo", x=torch.ones(1)))
        kept[-1].drain()
    assert open_descriptors() == before
