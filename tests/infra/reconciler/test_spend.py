"""What pods have cost: rows worked by hand. A pod of 12 USD per hour, with disks of 2 cents per hour where they count.

NOW is noon; `at` is in hours after it.
"""

from datetime import date, timedelta

import pytest

from infra.answers import PodBill
from infra.ledger import RowState
from infra.reconciler.spend import Spend, accrue
from tests.infra.pods import NAME, NOW, make_pod, make_row

TODAY, TOMORROW = date(2026, 11, 30), date(2026, 12, 1)


def at(hours):
    return NOW + timedelta(hours=hours)


def pod(created=0.0, cost=12.0, **fields):
    """Without disks."""
    return make_pod(**({"cost": cost, "createdAt": at(created).isoformat(), "mounts": {}} | fields))


def row(state=RowState.CREATED, ordered=0.0, **fields):
    return make_row(state, usd_per_hour=12.0, ordered_at=at(ordered), **fields)


def accrue_all(*ticks, spend=None):
    """Each tick: hours, pods, rows."""
    spend = spend or Spend()
    for hours, pods, rows in ticks:
        spend = accrue(spend, pods, rows, at(hours))
    return spend


PROVISIONING = pod(cost=0, status="PROVISIONING")
EXITED = pod(cost=0, status="EXITED")
TABLE = {
    "nothing": ([(1, [], [])], 0.0),
    "from its creation on": ([(1.5, [pod(created=1)], [])], 6.0),
    "then from one look to the next": ([(1, [pod()], []), (1.25, [pod()], []), (2, [pod()], [])], 24.0),
    "two pods": ([(1, [pod(), pod(id="pod2", name="h3render-manual-b-1", cost=1)], [])], 13.0),
    "doubled by RunPod under one name": ([(1, [pod(), pod(id="pod2")], [])], 24.0),
    "on its way, at its price": ([(0.5, [PROVISIONING], [row()])], 6.0),
    "on its way, without an order": ([(0.5, [PROVISIONING], [])], 0.0),
    "its cost rose: all since the last look": ([(1, [pod()], []), (2, [pod(cost=20)], [])], 32.0),
    "its cost fell: likewise": ([(1, [pod(cost=20)], []), (2, [pod()], []), (3, [pod()], [])], 52.0),
    "stopped since the last look": ([(1, [pod()], []), (2, [EXITED], []), (9, [EXITED], [])], 24.0),
    "gone since the last look": ([(1, [pod()], []), (2, [], []), (9, [], [])], 24.0),
    "missing from one list": ([(1, [pod()], []), (2, [], []), (3, [pod()], []), (4, [pod()], [])], 48.0),
    "after we slept": ([(1, [pod()], []), (10, [pod()], [])], 120.0),
    "an order whose answer is awaited": ([(0.1, [], [row(RowState.INTENT)])], 1.2),
    "or was lost": ([(0.1, [], [row(RowState.INTENT)]), (0.2, [], [row(RowState.UNKNOWN)])], 2.4),
    "and its pod was found": ([(0.1, [], [row(RowState.UNKNOWN)]), (1, [pod(created=0.05)], [row()])], 12.0),
    "and it never came": ([(0.2, [], [row(RowState.UNKNOWN)]), (0.3, [], [row(RowState.FAILED)])], 0.0),
    "and it came after all": (
        [(0.2, [], [row(RowState.UNKNOWN)]), (0.3, [], [row(RowState.FAILED)]), (1, [pod()], [row()])],
        12.0,
    ),
    "it was there and the order failed": (
        [(0.5, [pod()], [row(RowState.UNKNOWN)]), (1, [], [row(RowState.FAILED)])],
        12.0,
    ),
    "created, and no list shows it yet": ([(0.1, [], [row()])], 1.2),
    "seen, and gone before its order is closed": ([(1, [pod()], [row()]), (2, [], [row()]), (3, [], [row()])], 24.0),
    "orders that have ended": ([(1, [], [row(RowState.GONE), row(RowState.FAILED)])], 0.0),
    "the clock steps back": ([(2, [pod()], []), (1, [pod()], []), (2, [pod()], []), (3, [pod()], [])], 36.0),
    "and the pod is dearer meanwhile": ([(2, [pod()], []), (1, [pod(cost=24)], []), (3, [pod(cost=24)], [])], 48.0),
    "created in our future": ([(1, [pod(created=5)], [])], 0.0),
}


@pytest.mark.parametrize(("ticks", "usd"), TABLE.values(), ids=TABLE)
def test_what_was_spent(ticks, usd):
    assert accrue_all(*ticks).on(TODAY) == pytest.approx(usd)


# 144 GB for a month of 720 hours at 0.10 USD: 2 cents an hour; 72 GB at 0.20: as much.
@pytest.mark.parametrize(
    ("fields", "usd"),
    [
        ({"disk": 144, "mounts": {}}, 12.02),
        ({"disk": 72, "mounts": {"persistent": {"size": 72, "path": "/workspace"}}}, 12.02),
        ({"disk": 144, "mounts": {}, "status": "EXITED", "cost": 0}, 0.0),
        ({"disk": 144, "mounts": {"persistent": {"size": 72, "path": "/w"}}, "status": "EXITED", "cost": 0}, 0.02),
        ({"disk": 144, "status": "TERMINATED", "cost": 0}, 0.0),
        ({"disk": 144, "mounts": {"network": [{"volumeId": "v", "path": "/v"}]}}, 12.02),
    ],
)
def test_its_disks_are_paid_for_too(fields, usd):
    assert accrue_all((1, [pod(**fields)], [])).on(TODAY) == pytest.approx(usd)


def test_days_are_those_of_utc():
    spend = accrue_all((10, [pod()], []), (14, [pod()], []), (40, [pod()], []))
    assert [spend.on(day) for day in (TODAY, TOMORROW, date(2026, 12, 2))] == pytest.approx([144, 288, 48])


# --- campaigns


def test_a_campaign_counts_from_its_beginning():
    spend = accrue_all((1, [pod()], [])).begin_campaign(at(2))
    assert spend.campaign_usd == 0
    spend = accrue_all((3, [pod()], []), spend=spend)
    assert (spend.campaign_usd, spend.on(TODAY)) == pytest.approx((12, 36))


def test_a_pod_that_is_seen_late_counts_for_the_campaign_from_its_beginning_only():
    spend = accrue_all((3, [pod()], []), spend=Spend().begin_campaign(at(2)))
    assert (spend.campaign_usd, spend.on(TODAY)) == pytest.approx((12, 36))


def test_one_that_is_open_goes_on_and_after_its_end_another_begins_at_nothing():
    spend = accrue_all((1, [pod()], []), spend=Spend().begin_campaign(at(0)))
    assert spend.begin_campaign(at(1)).campaign_usd == 12
    assert spend.end_campaign().campaign_usd == 0
    assert spend.end_campaign().begin_campaign(at(1)).campaign_usd == 0


def test_what_never_came_is_taken_back_from_the_campaign_too():
    spend = accrue_all((0.2, [], [row(RowState.UNKNOWN)]), spend=Spend().begin_campaign(at(0)))
    assert spend.campaign_usd == pytest.approx(2.4)
    assert accrue_all((0.3, [], [row(RowState.FAILED)]), spend=spend).campaign_usd == 0


def test_sums_stay_when_the_tally_of_what_ended_is_dropped():
    spend = accrue_all((1, [pod()], []), (2, [], []), spend=Spend().begin_campaign(at(0)))
    later = accrue_all((2 + 49, [], []), spend=spend)
    assert (list(spend.tallies), list(later.tallies)) == ([NAME], [])
    assert (later.on(TODAY), later.campaign_usd) == (spend.on(TODAY), spend.campaign_usd) == (24, 24)


# --- the bill


def bill(usd, hour=0, pod_id="pod1"):
    fields = {"podId": pod_id, "startTime": at(hour), "endTime": at(hour + 1)}
    return PodBill.model_validate(fields | {"totalAmount": usd, "gpuAmount": usd, "diskAmount": 0.0})


@pytest.mark.parametrize(
    ("bills", "today", "tomorrow"),
    [
        ([], 24, 0),
        ([bill(12), bill(11, 1)], 24, 0),  # less: ours stays
        ([bill(12), bill(15, 1)], 27, 0),
        ([bill(99, pod_id="another")], 24, 0),
        ([bill(1, 12)], 24, 1),
    ],
)
def test_the_bill_only_ever_raises(bills, today, tomorrow):
    spend = accrue_all((2, [pod()], []), spend=Spend().begin_campaign(at(0))).raise_to(bills)
    assert [spend.on(TODAY), spend.on(TOMORROW), spend.campaign_usd] == [today, tomorrow, today + tomorrow]
    assert spend.raise_to(bills) == spend
