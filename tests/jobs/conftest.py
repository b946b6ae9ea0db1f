"""Fixtures over jobs of one empty Redis."""

import pytest

from jobs.client import Client
from jobs.lease import Leases
from tests.jobs.leasing import REQUEST, claim_job, run_out


@pytest.fixture
def leases(redis):
    """Of a Redis that has been looked at for long: leases are taken back as soon as they run out."""
    leases = Leases(redis)
    leases.reap()
    redis.hset("h3:beacon", "quiet_until_ms", 0)
    return leases


@pytest.fixture
def submit(redis):
    """Queue a job; its id."""
    return lambda **options: Client(redis).submit(REQUEST, **options).id


@pytest.fixture
def claim(leases, submit):
    """Claim a job, a new one unless it is named."""
    return lambda job_id=None, queue="default": claim_job(leases, job_id or submit(queue=queue), queue)


@pytest.fixture
def reap(redis, leases):
    """Let a lease run out, and take it back."""

    def reap(lease):
        run_out(redis, lease)
        return leases.reap()

    return reap


@pytest.fixture
def use_up(claim):
    """Lose a claimed job three times; where it was after each."""

    def use_up(lease):
        places = [lease.hand_back("fatal", "first")]
        return places + [claim(lease.job_id).hand_back("fatal", reason) for reason in ("second", "third")]

    return use_up
