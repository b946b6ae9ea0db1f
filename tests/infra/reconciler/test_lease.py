"""One reconciler at a time, on a real Redis."""

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from infra.errors import LeaseHeld, LeaseLost, LedgerUnusable
from infra.reconciler.lease import ReconcilerLease, read_lease
from tests.waiting import eventually


def put(lease, **fields):
    lease.put(lease.keys.facts, fields)


def facts(redis, lease):
    found = redis.hgetall(lease.keys.facts)
    return {name.decode(): value.decode() for name, value in found.items() if name not in (b"fence", b"born_ms")}


def test_of_two_one_has_it_and_the_other_is_told_who_and_how_long(make_lease):
    first, second = make_lease("host-a, pid 1"), make_lease("host-b, pid 2")
    assert first.take()
    assert not second.take()
    assert second.holder_told() == "host-a, pid 1, for another 60 s (fence 1)"
    with pytest.raises(LeaseHeld, match=r"fleet manual.*host-a, pid 1.*60 s") as caught:
        second.require()
    assert caught.value.exit_code == 75


def test_who_has_it_may_take_it_again_as_after_a_lost_answer(make_lease):
    lease = make_lease()
    assert lease.take()
    assert lease.take()
    assert lease.fence == 1


def test_the_fence_grows_with_each_holder(make_lease):
    fences = []
    for holder in "abc":
        lease = make_lease(holder)
        lease.require()
        fences.append(lease.fence)
        lease.give_back()
    assert fences == [1, 2, 3]


def test_fleets_are_looked_after_by_themselves(durable_redis, lease):
    assert ReconcilerLease(durable_redis, prefix="h3render", fleet="other", holder="b").take()
    assert ReconcilerLease(durable_redis, prefix="other", fleet="manual", holder="b").take()


def test_who_has_it_is_told_to_whoever_asks(durable_redis, lease):
    told = read_lease(durable_redis, "h3render", "manual")
    assert (told.holder, told.fence) == ("a", 1)
    assert 59 < told.left_s <= 60
    lease.give_back()
    assert read_lease(durable_redis, "h3render", "manual") is None


def test_it_runs_out_and_who_had_it_writes_nothing_any_more(durable_redis, make_lease):
    paused, next_one = make_lease("paused", ttl_s=0.05), make_lease("next")
    assert paused.take()
    put(paused, word="old")
    eventually(next_one.take)
    for act in (paused.renew, lambda: put(paused, word="late")):
        with pytest.raises(LeaseLost, match="fence 1"):
            act()
    paused.give_back()
    put(next_one, other="new")
    assert facts(durable_redis, next_one) == {"word": "old", "other": "new"}


def test_it_ran_out_and_nobody_took_it_which_is_the_same(durable_redis, make_lease):
    lease = make_lease(ttl_s=0.05)
    assert lease.take()
    eventually(lambda: read_lease(durable_redis, "h3render", "manual") is None)
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lease.take()
    assert lease.fence == 2


def test_it_is_kept_by_renewing(durable_redis, make_lease):
    lease = make_lease(ttl_s=20)
    assert lease.take()
    durable_redis.pexpire(lease.keys.lease, 1000)
    lease.renew()
    assert read_lease(durable_redis, "h3render", "manual").left_s > 19


def test_after_redis_has_lost_all_the_same_number_opens_nothing(durable_redis, make_lease):
    old, new = make_lease("old"), make_lease("new")
    assert old.take()
    durable_redis.flushall()
    with pytest.raises(LeaseLost):
        old.renew()
    assert new.take()
    assert new.fence == old.fence
    with pytest.raises(LeaseLost):
        put(old, word="late")


def test_who_cannot_ask_does_not_know_and_stops():
    with Redis(unix_socket_path="/nowhere/redis.sock", retry=Retry(NoBackoff(), 0)) as redis:
        lease = ReconcilerLease(redis, prefix="h3render", fleet="manual", holder="a")
        for act in (lease.take, lease.renew, lambda: put(lease, word="x"), lambda: read_lease(redis, "a", "b")):
            with pytest.raises(LeaseLost, match="REDIS_URL"):
                act()
        lease.give_back()


@pytest.mark.parametrize(("setting", "value"), [("appendonly", "no"), ("appendfsync", "no")])
def test_a_redis_that_does_not_keep_what_it_confirms_is_refused(durable_redis, lease, monkeypatch, setting, value):
    monkeypatch.setattr("infra.reconciler.lease.SYNC_TIMEOUT_S", 0.1)
    durable_redis.config_set(setting, value)
    with pytest.raises(LedgerUnusable, match="CONFIG SET appendonly yes"):
        put(lease, word="x")


def test_a_holders_name_moves_no_cursor(make_lease):
    assert make_lease("\x1b[2Jx").take()
    other = make_lease("b")
    assert not other.take()
    assert "\x1b" not in other.holder_told()
