"""Batches of one empty Redis, queued and claimed without files and workers."""

import pytest

from jobs.batch.record import Batch
from jobs.client import Client
from tests.jobs.batch.shots import QUEUE
from tests.jobs.leasing import claim_job


@pytest.fixture
def client(redis):
    return Client(redis)


@pytest.fixture
def queue(redis, client):
    """Submit rows as a batch; what became of each."""

    def queue(rows, name="night-01", **options):
        batch = Batch(redis, name)
        return list(batch.queue(batch.plan(rows, **options), client))

    return queue


@pytest.fixture
def record_rows(queue):
    """The same; the rows, as the batch has them."""
    return lambda rows, name="night-01", **options: [done.row for done in queue(rows, name, **options)]


@pytest.fixture
def take(leases):
    """Claim a row's job."""
    return lambda row: claim_job(leases, row.job_id, QUEUE)
