"""What one job makes of the messages about it. No process, no thread."""

from __future__ import annotations

import pytest

from worker.mgpu.job import Job, ProtocolError
from worker.mgpu.link import Kind, Message


def item(job_id: int, sequence: int) -> Message:
    return Message(Kind.ITEM, job_id, sequence)


@pytest.fixture
def job() -> Job:
    """Number 7, with one message of rank 1."""
    job = Job(7, world_size=2)
    job.take(1, item(7, 0))
    return job


@pytest.mark.parametrize("kind", [Kind.ITEM, Kind.RETURNED, Kind.REFUSED])
@pytest.mark.parametrize(
    ("job_id", "sequence"), [(6, 1), (8, 1), (7, 2), (7, 0)], ids=["earlier job", "later job", "gap", "repeat"]
)
def test_a_message_out_of_turn_is_refused(job: Job, kind: Kind, job_id: int, sequence: int) -> None:
    """76: with what came and what was expected."""
    with pytest.raises(ProtocolError) as caught:
        job.take(1, Message(kind, job_id, sequence))
    assert str(caught.value) == f"rank 1 sent (job, sequence) {(job_id, sequence)} while (7, 1) was expected"
    assert job.arrivals.qsize() == 1


def test_each_rank_counts_for_itself(job: Job) -> None:
    """76"""
    job.take(0, item(7, 0))
    job.take(1, item(7, 1))
    job.take(0, item(7, 1))
    assert job.yields == {0: 2, 1: 2}


def test_a_rank_that_has_ended_says_no_more(job: Job) -> None:
    """76"""
    job.take(1, Message(Kind.RETURNED, 7, 1))
    for sequence in (1, 2):
        with pytest.raises(ProtocolError):
            job.take(1, item(7, sequence))
    assert job.unended == [0]
