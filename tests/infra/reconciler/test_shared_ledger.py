"""Orders in Redis with a copy on the disk: who may write them, and what is noticed when Redis loses them."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr
from redis import Redis

from infra.clock import Clock
from infra.create import Creator
from infra.errors import LeaseLost, LedgerLost, LedgerUnusable
from infra.ledger import Ledger, RowState
from infra.plan import read_create_plan, settle_rows
from infra.reconciler.lease import ReconcilerLease
from infra.reconciler.shared_ledger import SharedLedger
from infra.runpod import RunPod
from infra.terminate import ask_end
from tests.infra.pod_commands import ROOT
from tests.infra.pods import NOW, TOKEN, make_order, make_row
from tests.infra.runpod.server import running_runpod

DIES = "tests.infra.reconciler.dies_between"


def other(number):
    """A token, and the name that goes with it."""
    token = f"{number:016x}"
    return {"token": token, "name": f"h3render-manual-pod-{token}"}


@pytest.fixture
def copy(tmp_path):
    return Ledger(tmp_path / "copy.jsonl")


@pytest.fixture
def ledger(durable_redis, lease, copy):
    """That is open."""
    ledger = SharedLedger(durable_redis, lease, copy, Clock(now=lambda: NOW))
    ledger.open()
    return ledger


def states(ledger):
    return [row.state for row in ledger.read()]


def test_what_is_written_is_in_redis_and_in_the_copy_oldest_first(ledger, copy):
    ledger.append(make_row(age_s=1))
    ledger.append(make_row(age_s=2, **other(1)))
    created = ledger.move(make_row(age_s=1), RowState.CREATED, pod_id="pod1")
    assert ledger.read() == [make_row(age_s=2, **other(1)), created]
    assert ledger.find("pod1") == created
    assert set(copy.read()) == set(ledger.read())


def test_another_machine_goes_on_with_it_and_its_copy_knows_what_is_open(
    durable_redis, make_lease, lease, ledger, tmp_path
):
    ledger.append(make_row())
    lease.give_back()
    elsewhere = Ledger(tmp_path / "elsewhere.jsonl")
    next_lease = make_lease("b")
    next_lease.require()
    next_one = SharedLedger(durable_redis, next_lease, elsewhere, Clock(now=lambda: NOW))
    next_one.open()
    assert next_one.read() == elsewhere.read() == [make_row()]
    with pytest.raises(LeaseLost):
        ledger.move(make_row(), RowState.CREATED, pod_id="pod1")
    assert states(next_one) == [RowState.INTENT]


def test_what_is_confirmed_survives_the_servers_death(redis_server, tmp_path):
    with Redis.from_url(redis_server.url) as redis:
        redis.config_set("appendfsync", "always")
        lease = ReconcilerLease(redis, prefix="h3render", fleet="manual", holder="a")
        lease.require()
        ledger = SharedLedger(redis, lease, Ledger(tmp_path / "copy.jsonl"))
        ledger.append(make_row())
        redis_server.restart()
        assert ledger.read() == [make_row()]


# --- crashes and losses


@pytest.mark.parametrize("dies_in", ["copy", "redis"])
def test_a_crash_between_copy_and_redis_loses_no_order_and_alarms_nobody(
    durable_redis, durable_server, make_lease, copy, dies_in
):
    command = [sys.executable, "-m", DIES, durable_server.url, copy.path, dies_in]
    done = subprocess.run(command, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -9
    assert [row.token for row in copy.read()] == [TOKEN]  # in either case: the copy is never behind
    lease = make_lease("next")
    durable_redis.delete(lease.keys.lease)  # as if it had run out
    lease.require()
    ledger = SharedLedger(durable_redis, lease, copy, Clock(now=lambda: NOW))
    ledger.open()
    assert states(ledger) == [RowState.INTENT]
    settle_rows(ledger, [], NOW + timedelta(minutes=16))
    assert states(ledger) == [RowState.FAILED]


@pytest.mark.parametrize("state", [RowState.CREATED, RowState.UNKNOWN, RowState.DRAINING, RowState.TERMINATING])
def test_an_order_that_redis_has_lost_is_noticed_and_may_be_restored(durable_redis, ledger, copy, state):
    row = make_row(state, pod_id="pod1")
    ledger.append(row)
    durable_redis.hdel("h3:pods:h3render-manual:orders", TOKEN)
    for act in (ledger.read, ledger.open, lambda: ledger.find("pod1")):
        with pytest.raises(LedgerLost, match=rf"copy.jsonl has: pod1 \({state}\).*--restore-ledger"):
            act()
    assert ledger.restore() == [row]
    ledger.open()
    assert ledger.read() == [row]
    assert ledger.restore() == []


def test_with_all_data_gone_even_an_order_that_was_only_meant_is_missed(durable_redis, ledger):
    ledger.append(make_row())
    durable_redis.flushall()
    with pytest.raises(LeaseLost):
        ledger.append(make_row(**other(1)))
    with pytest.raises(LedgerLost):
        ledger.read()


def test_what_has_ended_is_not_missed(durable_redis, ledger):
    ledger.append(make_row(RowState.FAILED))
    durable_redis.flushall()
    assert ledger.read() == []


def test_orders_of_people_in_the_same_file_are_none_of_the_fleet(ledger, copy):
    copy.append(make_row(RowState.CREATED, token="f" * 16, name=f"h3render-manual2-pod-{'f' * 16}"))
    assert ledger.read() == []


def test_a_row_that_is_not_ours_is_told(durable_redis, ledger):
    durable_redis.hset("h3:pods:h3render-manual:orders", "x", "{}")
    with pytest.raises(LedgerUnusable, match="order b'x'"):
        ledger.read()


def test_a_copy_that_cannot_be_written_keeps_an_order_out_of_redis(durable_redis, lease, ledger, tmp_path):
    tmp_path.joinpath("file").write_text("")
    blocked = SharedLedger(durable_redis, lease, Ledger(tmp_path / "file" / "copy.jsonl"))
    with pytest.raises(LedgerUnusable):
        blocked.append(make_row())
    assert ledger.read() == []


# --- age


def test_its_birth_is_told_by_redis_and_stays(durable_redis, ledger):
    seconds, _ = durable_redis.time()
    born_at = ledger.born_at()
    assert abs((born_at - datetime.fromtimestamp(seconds, UTC)).total_seconds()) < 60
    ledger.append(make_row())
    ledger.open()
    assert ledger.born_at() == born_at
    durable_redis.flushall()
    assert ledger.born_at() is None


def test_orders_that_ended_long_ago_are_dropped_when_another_ends(durable_redis, ledger):
    for number, (state, days) in enumerate(
        [(RowState.GONE, 31), (RowState.FAILED, 31), (RowState.CREATED, 31), (RowState.GONE, 29)]
    ):
        ledger.append(make_row(state, at=NOW - timedelta(days=days), **other(number)))
    ledger.append(make_row(RowState.FAILED))
    assert sorted(row.token for row in ledger.read()) == sorted([TOKEN, other(2)["token"], other(3)["token"]])


# --- creates and ends


@pytest.fixture
def runpod():
    with running_runpod(later=True) as server:
        yield server
        assert server.outside() == []


@pytest.fixture
def create(runpod, durable_redis, lease, copy):
    """Plan and create with a shared ledger; `before` is done between the two."""
    clock = Clock(now=lambda: datetime.fromtimestamp(runpod.now, UTC), sleep=runpod.advance)
    ledger = SharedLedger(durable_redis, lease, copy, clock)
    ledger.open()

    def create(before=lambda: None):
        plan = read_create_plan(api, ledger, clock, make_order(), data_center=None, cap=40.0, max_hours=6)
        before()
        return Creator(api, ledger, clock, tell_pod=lambda _: None, tell=lambda _: None).create(plan)

    with RunPod(runpod.url, SecretStr(runpod.key), clock) as api:
        create.api, create.ledger = api, ledger
        yield create


def test_a_pod_is_created_and_ended_by_it(runpod, create):
    pod = create()
    [row] = create.ledger.read()
    assert (row.pod_id, row.state) == (pod.id, RowState.CREATED)
    assert row.lease_until == datetime.fromtimestamp(runpod.now, UTC) + timedelta(hours=6)
    ask_end(create.api, create.ledger, pod.id)
    assert states(create.ledger) == [RowState.TERMINATING]
    assert runpod.alive() == []


def test_who_has_lost_the_lease_neither_creates_nor_ends(runpod, lease, create):
    pod = create()
    sent = len(runpod.changes())
    with pytest.raises(LeaseLost):
        create(before=lease.give_back)
    with pytest.raises(LeaseLost):
        ask_end(create.api, create.ledger, pod.id)
    assert len(runpod.changes()) == sent


def test_with_a_ledger_that_is_lost_nothing_is_ended(runpod, durable_redis, create):
    pod = create()
    sent = len(runpod.changes())
    durable_redis.flushall()
    with pytest.raises(LedgerLost):
        ask_end(create.api, create.ledger, pod.id)
    assert [alive.id for alive in runpod.alive()] == [pod.id]
    assert len(runpod.changes()) == sent
