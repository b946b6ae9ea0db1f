"""How many pods, by hand: 600 s to start one, 900 s within which the queue is to be empty."""

import pytest

from infra.reconciler.machine import Stage
from infra.reconciler.wanted import count_wanted
from tests.infra.reconciler.situations import USD, make_limits, make_machines, make_situation, make_work

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
        # 600 s to start and 600 s for a job: 5.04 USD a pod
        pytest.param(NONE, make_work(100), {"usd_total": 10.07}, 1, "0.00 of 10.07 USD", id="one fits the budget"),
        pytest.param(NONE, make_work(100), {"usd_total": 5.03}, 0, "0.00 of 5.03 USD", id="none fits the budget"),
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
    enough = 4 * USD * 1200 / 3600 + 2 * USD * 120 / 3600
    assert count_wanted(make_situation(two, make_work(9), limits=make_limits(usd_total=enough + 0.01))).count == 4
    assert count_wanted(make_situation(two, make_work(9), limits=make_limits(usd_total=enough - 0.01))).count == 3


def test_without_a_price_none_is_ordered():
    wanted = count_wanted(make_situation(work=make_work(9), usd_per_hour=0.0))
    assert (wanted.count, "no price" in wanted.why) == (0, True)


def test_a_person_s_word_comes_first():
    assert count_wanted(make_situation(make_machines(Stage.BUSY), make_work(9), is_going_down=True)).count == 0
