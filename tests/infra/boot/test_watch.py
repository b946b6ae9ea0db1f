"""When a pod leaves by itself, as a table; and what a worker's end means."""

import pytest

from infra.boot.agenda import Agenda
from infra.boot.watch import Limits, Moment, judge
from infra.boot.worker_process import Fate, choose_pause_s, describe_exit, judge_exit

LIMITS = Limits(lease_until=1000.0, idle_s=60.0, contact_s=30.0)
BUSY = Moment(now=999.0, knows_queue=True, is_busy=True, idle_s=0.0, silent_s=0.0)


def moment(**changes):
    fields = {name: getattr(BUSY, name) for name in BUSY.__slots__}
    return Moment(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"now": 1000.0}, "its lease ended 0 s ago"),
        ({"now": 1060.0, "is_busy": False}, "its lease ended 1 min ago"),
        ({"now": 1060.0, "is_busy": False, "knows_queue": False}, "its lease ended 1 min ago"),
        ({"now": 1060.0, "knows_queue": False}, ""),  # a busy one could not give its job back
        ({"silent_s": 1e9}, ""),  # busy
        ({"is_busy": False, "idle_s": 59.9}, ""),
        ({"is_busy": False, "idle_s": 60.0}, "no job for 1 min"),
        ({"is_busy": False, "idle_s": 1e6, "silent_s": 1e6, "knows_queue": False}, ""),
        ({"is_busy": False, "idle_s": 1.0, "silent_s": 29.9}, ""),
        ({"is_busy": False, "idle_s": 1.0, "silent_s": 30.0}, "idle, and no reconciler has looked for 30 s"),
        ({"is_busy": False, "idle_s": 0.0, "silent_s": 30.0}, ""),  # it fetches
    ],
)
def test_a_pod_leaves_for_these_reasons_alone(changes, reason):
    assert judge(moment(**changes), LIMITS) == reason


def test_a_pod_without_a_lease_stays_as_long_as_it_is_busy():
    assert judge(moment(now=1e12), Limits(None, 60.0, 30.0)) == ""


@pytest.mark.parametrize(
    ("code", "fate"),
    [(0, Fate.LEAVE), (78, Fate.UNFIT), (2, Fate.UNFIT), (75, Fate.AGAIN), (1, Fate.AGAIN), (-9, Fate.AGAIN)],
)
def test_a_workers_exit_code_decides_what_becomes_of_the_pod(code, fate):
    assert judge_exit(code) is fate
    assert str(abs(code)) in describe_exit(code)


def test_pauses_between_short_lives_grow_to_five_minutes():
    assert [choose_pause_s(failures) for failures in range(1, 9)] == [5, 10, 20, 40, 80, 160, 300, 300]


def test_what_is_due_is_done_once_in_the_order_of_its_time():
    now, done = [0.0], []
    agenda = Agenda(lambda: now[0])
    first, second, dropped = (lambda: done.append("first")), (lambda: done.append("second")), done.clear
    agenda.put(second, 3.0)
    agenda.put(first, 9.0)
    agenda.put(first, 2.0)
    agenda.put(dropped, 1.0)
    agenda.drop(dropped)
    assert agenda.pause_s == 2.0
    agenda.do_due()
    assert done == []
    now[0] = 5.0
    assert agenda.pause_s == 0.0
    agenda.do_due()
    assert done == ["first", "second"]
    assert agenda.pause_s is None
