"""Memory and spend in Redis: read back whole, written by the lease's holder alone."""

import pytest

from infra.errors import LeaseLost, LedgerUnusable
from infra.reconciler.memory import Memory
from infra.reconciler.notes import Notes, RedisNotebook
from infra.reconciler.spend import Spend, accrue
from tests.infra.pods import NOW, make_pod


def test_they_are_read_back_whole(durable_redis, lease):
    notebook = RedisNotebook(durable_redis, lease)
    assert notebook.read() == Notes()
    spend = accrue(Spend().begin_campaign(NOW), [make_pod()], [], NOW)
    memory = Memory().note_refusal("US-KS-2", "no capacity", NOW, chance=0.5).note_boot("a", 400.0)
    notebook.write(Notes(memory, spend))
    assert notebook.read() == Notes(memory, spend)
    lease.give_back()
    with pytest.raises(LeaseLost):
        notebook.write(Notes())
    assert notebook.read() == Notes(memory, spend)


@pytest.mark.parametrize("field", ["memory", "spend"])
def test_notes_that_are_not_ours_are_told(durable_redis, lease, field):
    durable_redis.hset(lease.keys.facts, field, '{"version": 2}')
    with pytest.raises(LedgerUnusable, match="no notes of ours"):
        RedisNotebook(durable_redis, lease).read()
