"""How many pods, by hand: 600 s to start one, 900 s within which the queue is to be empty."""

from dataclasses import replace

import pytest

from infra.reconciler.machine import Stage
from infra.reconciler.wanted import count_wanted, find_returning
from tests.infra.reconciler.situations import USD, make_limits, make_machine, make_machines, make_situation, make_work

NONE, ONE_READY, ONE_BUSY = [], [Stage.READY], [Stage.BUSY]


@pytest.mark.parametrize(
    ("stages", "work", "limits", "count", "said"),
    [
        pytest.param(NONE, make_work(0), {}, 0, "0 s of work in 0 jobs", id="nothing to do"),
        pytest.param(NONE, make_work(1, 1.0), {}, 1, "1 s of work in 1 job", id="one short job"),
        pytest.param(NONE, make_work(0), {"least": 1}, 1, "at least 1", id="the least"),
        pytest.param(NONE, make_work(3, 300.0), {}, 1, "", id="900 s are one pod's"),
        pytest.param(NONE, make_work(3, 301.0), {}, 2, "", id="903 s are two pods'"),
        pytest.param(NONE, make_work(1, 9000.0), {}, 1, "", id="one job renders on one pod, however long it is"),
        pytest.param(NONE, make_work(100), {}, 2, "2 at a time", id="a step"),
        pytest.param([Stage.READY] * 3, make_work(100), {}, 4, "at most 4", id="the most"),
        pytest.param([Stage.READY] * 5, make_work(100), {}, 4, "at most 4", id="more than the most"),
        pytest.param([Stage.ORDERED, Stage.STARTING], make_work(4, 450.0), {}, 2, "", id="those that start count"),
        pytest.param(ONE_READY, make_work(3, 99.0), {"horizon_s": 100.0}, 1, "done before", id="soon done: 297 s"),
        pytest.param(ONE_READY, make_work(3, 100.0), {"horizon_s": 100.0}, 3, "", id="not so soon: 300 s"),
        pytest.param(ONE_BUSY, make_work(1, 0.5, running=1), {}, 1, "", id="what runs is work"),
        pytest.param(ONE_BUSY, make_work(0), {}, 0, "", id="a worker that is behind with its news"),
        pytest.param(NONE, make_work(100), {"usd_per_hour": 15.12}, 1, "0.00 of 15.12", id="one fits the hour"),
        pytest.param(NONE, make_work(100), {"usd_per_hour": 15.11}, 0, "0.00 of 15.11", id="none fits the hour"),
        pytest.param(
            [Stage.READY, Stage.ENDING], make_work(100), {"usd_per_hour": 45.0}, 1, "30.24 of 45.00", id="ends bill too"
        ),
        pytest.param([Stage.DRAINING], make_work(100), {"usd_per_hour": 30.24}, 1, "15.12 of 30.24", id="drains, too"),
        pytest.param([Stage.ORDERED], make_work(100), {"usd_per_hour": 30.0}, 1, "15.12 of 30.00", id="orders, too"),
        # 600 s to start, 1,200 s for a long job, and 120 s to end: 8.06 USD a pod
        pytest.param(NONE, make_work(100), {"usd_total": 16.12}, 1, "0.00 of 16.12 USD", id="one fits the budget"),
        pytest.param(NONE, make_work(100), {"usd_total": 8.06}, 0, "0.00 of 8.06 USD", id="none fits the budget"),
    ],
)
def test_the_table(stages, work, limits, count, said):
    wanted = count_wanted(make_situation(make_machines(*stages), work, limits=make_limits(**limits)))
    assert wanted.count == count
    assert said in wanted.why


@pytest.mark.parametrize(
    ("spent", "stages", "count"),
    [
        (359.9, NONE, 2),
        (360.0, NONE, 0),  # nine tenths: no more
        (360.0, ONE_BUSY, 1),  # and none less
        # Busy: 1,200 s at 15.12 to finish, and 120 s to end, are 5.54 USD
        (394.4, ONE_BUSY, 1),
        (394.5, ONE_BUSY, 0),
        (399.4, ONE_READY, 1),  # idle: 0.50 USD to end
        (399.5, ONE_READY, 0),
    ],
)
def test_the_campaign_s_budget(spent, stages, count):
    jobs = make_work(100, running=stages.count(Stage.BUSY))
    assert count_wanted(make_situation(make_machines(*stages), jobs, spent_usd=spent)).count == count


def test_pods_that_start_have_their_share_of_the_budget():
    two = make_machines(Stage.ORDERED, Stage.STARTING)
    enough = 4 * USD * (600 + 1200 + 120) / 3600
    assert count_wanted(make_situation(two, make_work(9), limits=make_limits(usd_total=enough + 0.01))).count == 4
    assert count_wanted(make_situation(two, make_work(9), limits=make_limits(usd_total=enough - 0.01))).count == 3


@pytest.mark.parametrize("stage", [Stage.READY, Stage.BUSY, Stage.STARTING])
def test_a_pod_that_is_ordered_can_be_paid_also_once_all_render(stage):
    """Else all are drained, and those that start are ended, as soon as one more takes a job."""
    started_s = 600 if stage is Stage.STARTING else 0
    enough = USD * (started_s + 1200 + 120) / 3600 + USD * (600 + 1200 + 120) / 3600
    work = make_work(9, running=1 if stage is Stage.BUSY else 0)
    for usd_total, count in ((enough + 0.01, 2), (enough - 0.01, 1)):
        limits = make_limits(usd_total=usd_total)
        assert count_wanted(make_situation(make_machines(stage), work, limits=limits)).count == count
    later = make_situation(make_machines(Stage.BUSY, Stage.BUSY), work, limits=make_limits(usd_total=enough + 0.01))
    assert count_wanted(replace(later, spent_usd=USD * (started_s + 600) / 3600)).count == 2


def test_without_a_price_none_is_ordered():
    wanted = count_wanted(make_situation(work=make_work(9), usd_per_hour=0.0))
    assert (wanted.count, "no price" in wanted.why) == (0, True)


@pytest.mark.parametrize(
    ("fields", "is_heard", "count"),
    [
        ({"limits": make_limits(usd_per_hour=USD)}, True, 1),  # it has its hour already
        ({"limits": make_limits(usd_per_hour=USD)}, False, 0),
        ({"usd_per_hour": 0.0}, True, 1),  # and its price
        ({"usd_per_hour": 0.0}, False, 0),
        # 1,200 s for a long job and 120 s to end are 5.54 USD: it need not start
        ({"limits": make_limits(usd_total=5.55)}, True, 1),
        ({"limits": make_limits(usd_total=5.54)}, True, 0),
        ({"limits": make_limits(usd_total=5.55)}, False, 0),
        ({"spent_usd": 370.0}, True, 1),  # beyond nine tenths none is ordered, and this one not ended
        ({"spent_usd": 370.0}, False, 0),
    ],
)
def test_one_that_drains_comes_back_where_a_new_one_could_not_be_paid(fields, is_heard, count):
    draining = make_machine(1, Stage.DRAINING, is_heard=is_heard)
    assert count_wanted(make_situation([draining], make_work(1), **fields)).count == count


def test_all_that_drain_may_come_back_at_a_time():
    """They are there already: with only two of three back, one would be ended, and another ordered a minute later."""
    draining = [make_machine(number, Stage.DRAINING, is_heard=True) for number in (1, 2, 3)]
    assert count_wanted(make_situation(draining, make_work(9))).count == 3


def test_of_those_that_drain_the_ones_come_back_whose_jobs_are_paid_for():
    """With an idle one in their place, the budget would be spent at the next look."""
    idle = make_machine(1, Stage.DRAINING, is_heard=True)
    busy = make_machine(2, Stage.DRAINING, is_heard=True, job="job2")
    enough = USD * (1200 + 2 * 120) / 3600
    situation = make_situation([idle, busy], make_work(9), limits=make_limits(usd_total=enough + 0.01))
    assert count_wanted(situation).count == 1
    assert find_returning(situation)[0] is busy


def test_a_person_s_word_comes_first():
    assert count_wanted(make_situation(make_machines(Stage.BUSY), make_work(9), is_going_down=True)).count == 0
