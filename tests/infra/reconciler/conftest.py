"""A Redis that keeps what it confirms, and leases of one fleet in it."""

import pytest
from redis import Redis

from infra.reconciler.lease import ReconcilerLease
from tests.servers import running_redis


@pytest.fixture(scope="module")
def durable_server(need_redis):
    with running_redis(append_only=True) as server:
        yield server


@pytest.fixture
def durable_redis(durable_server):
    """Empty."""
    with Redis.from_url(durable_server.url) as redis:
        redis.flushall()
        redis.config_set("appendfsync", "always")
        redis.config_set("appendonly", "yes")
        yield redis


@pytest.fixture
def make_lease(durable_redis):
    """Of the fleet that `tests.infra.pods` orders for."""

    def make_lease(holder="a", **settings):
        return ReconcilerLease(durable_redis, prefix="h3render", fleet="manual", holder=holder, **settings)

    return make_lease


@pytest.fixture
def lease(make_lease):
    """That is held."""
    lease = make_lease()
    assert lease.take()
    return lease
