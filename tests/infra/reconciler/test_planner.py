"""The decisions, one situation a row."""

from datetime import timedelta

import pytest

from infra.answers import Pod
from infra.guards import Move
from infra.ledger import RowState
from infra.placement import Place
from infra.reconciler.decisions import Alert, Drain, End, GiveBack, Hold, Order, Settle, Undrain
from infra.reconciler.machine import Stage
from infra.reconciler.memory import Avoided, Ending, Failure
from infra.reconciler.planner import plan
from tests.infra.pods import NOW, make_pod, make_row
from tests.infra.reconciler.situations import (
    make_limits,
    make_machine,
    make_machines,
    make_memory,
    make_situation,
    make_work,
)

LONG_S = 10_000.0


def decide(machines=(), work=None, **fields):
    return plan(make_situation(machines, work, **fields)).decisions


def kinds(decisions):
    return [type(one) for one in decisions]


# --- more


def test_what_waits_orders_pods_where_there_is_most_stock():
    decisions = decide(work=make_work(9))
    assert kinds(decisions) == [Order, Order]
    assert [place.data_center for place in decisions[0].places] == ["US-KS-2", "EU-RO-1"]
    assert "1 h 30 min of work in 9 jobs" in decisions[0].why


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"memory": make_memory(raised_at=NOW - timedelta(seconds=59))}, "a moment ago"),
        ({"memory": make_memory(stopped="the balance is too low")}, "the balance is too low; `h3render pods up"),
        ({"places": []}, "no data center has stock"),
        ({"limits": make_limits(data_centers=("EU-CZ-1",))}, "no data center has stock"),
        (
            {
                "memory": make_memory(
                    paused_until=NOW + timedelta(minutes=2),
                    failures=(Failure(at=NOW, name="a", data_center="US-KS-2", why="its worker is not ready"),),
                )
            },
            "pods failed (its worker is not ready); one is tried in 2 min",
        ),
    ],
)
def test_none_is_ordered_while(fields, why):
    (hold,) = decide(work=make_work(9), **fields)
    assert isinstance(hold, Hold)
    assert why in hold.why


def test_after_failures_one_pod_shows_whether_all_is_well():
    memory = make_memory(paused_until=NOW, is_probing=True)
    assert kinds(decide(work=make_work(9), memory=memory)) == [Order]
    tried = make_machines(Stage.STARTING)
    assert kinds(decide(tried, make_work(9), memory=memory)) == [Hold]
    ready = make_machines(Stage.READY)
    decided = plan(make_situation(ready, make_work(9), memory=memory))
    assert kinds(decided.decisions) == [Order, Order]
    assert not decided.memory.is_probing


def test_a_data_center_that_refused_is_left_out_for_a_while():
    avoided = {"US-KS-2": Avoided(until=NOW + timedelta(seconds=1), refusals=1, why="no capacity")}
    (order, _) = decide(work=make_work(9), memory=make_memory(avoided=avoided))
    assert [place.data_center for place in order.places] == ["EU-RO-1"]
    (hold,) = decide(work=make_work(9), memory=make_memory(avoided=avoided), places=[Place("US-KS-2", "HIGH")])
    assert "US-KS-2 (no capacity)" in hold.why


def test_one_that_drains_takes_jobs_again_before_another_is_ordered():
    draining = make_machine(1, Stage.DRAINING, is_heard=True)
    decisions = decide([draining], make_work(9))
    assert kinds(decisions) == [Undrain, Order]
    assert kinds(decide([make_machine(1, Stage.DRAINING)], make_work(9))) == [Order, Order, End]  # its worker has left


# --- fewer


def test_one_idle_pod_at_a_time_goes_the_one_that_was_idle_longest():
    machines = make_machines(Stage.READY, Stage.READY, Stage.BUSY)
    memory = make_memory(machines, idle_s=700.0, surplus_s=300.0)
    memory = memory.with_(idle_since={**memory.idle_since, machines[1].name: NOW - timedelta(seconds=800)})
    (drain,) = decide(machines, make_work(1, running=1), memory=memory)
    assert isinstance(drain, Drain)
    assert drain.machine.name == machines[1].name
    assert "idle for 13 min 20 s" in drain.why


@pytest.mark.parametrize(
    ("machines", "memory"),
    [
        pytest.param(make_machines(Stage.READY), {"idle_s": 700.0, "surplus_s": 299.0}, id="not for long enough"),
        pytest.param(make_machines(Stage.READY), {"idle_s": 599.0, "surplus_s": 300.0}, id="idle a moment ago"),
        pytest.param(make_machines(Stage.BUSY), {"surplus_s": LONG_S}, id="none is idle"),
        pytest.param(
            make_machines(Stage.READY, Stage.DRAINING), {"idle_s": LONG_S, "surplus_s": LONG_S}, id="one goes"
        ),
        pytest.param(
            [make_machine(1, Stage.READY, age_s=1199.0)], {"idle_s": 900.0, "surplus_s": 900.0}, id="it is young"
        ),
    ],
)
def test_none_goes_while(machines, memory):
    decisions = decide(machines, make_work(0), memory=make_memory(machines, **memory))
    assert not any(isinstance(one, Drain) for one in decisions)


def test_a_surplus_that_ends_is_forgotten():
    machines = make_machines(Stage.READY)
    decided = plan(make_situation(machines, make_work(1), memory=make_memory(machines, surplus_s=299.0)))
    assert decided.memory.surplus_since is None


def test_the_least_stay():
    machines = make_machines(Stage.READY, Stage.READY)
    memory = make_memory(machines, idle_s=LONG_S, surplus_s=LONG_S)
    assert kinds(decide(machines, memory=memory, limits=make_limits(least=1))) == [Drain]
    assert decide(machines, memory=memory, limits=make_limits(least=2)) == []


# --- drains


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"is_heard": True}, [End], id="nothing runs"),
        pytest.param({"is_heard": True, "takes_jobs": True}, [Drain], id="it was not told yet"),
        pytest.param({"is_heard": True, "takes_jobs": True, "job": "a"}, [], id="it renders"),
        # The longest of 600 s jobs takes 1,200 s, and has half as much again.
        pytest.param({"is_heard": True, "job": "a", "moved_s": 1799.0}, [], id="it renders on"),
        pytest.param({"is_heard": True, "job": "a", "moved_s": 1800.0}, [GiveBack], id="for too long"),
        pytest.param({"is_heard": True, "job": "a", "moved_s": 1980.0}, [End], id="whatever it was told"),
        pytest.param({"is_heard": True, "job": "a", "lease_s": 180.0}, [GiveBack], id="its lease ends"),
    ],
)
def test_a_drain_goes_on(fields, expected):
    assert kinds(decide([make_machine(1, Stage.DRAINING, **fields)])) == expected


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Stage.READY, [Drain]),
        (Stage.BUSY, [Drain]),
        (Stage.PAUSED, [Drain]),
        (Stage.STARTING, [End]),
        (Stage.ORDERED, []),
    ],
)
def test_on_the_way_down_all_go_and_what_renders_finishes(stage, expected):
    assert kinds(decide(make_machines(stage), make_work(9), is_going_down=True)) == expected


def test_a_pod_whose_lease_ends_soon_is_drained_and_replaced():
    machines = [make_machine(1, Stage.BUSY, lease_s=1800.0)]
    assert kinds(decide(machines, make_work(2, running=1))) == [Drain, Order, Order]
    assert kinds(decide([make_machine(1, Stage.BUSY, lease_s=1801.0)], make_work(1, running=1))) == []


def test_a_pod_that_drains_and_is_not_heard_for_a_moment_may_still_render():
    assert decide([make_machine(1, Stage.DRAINING, is_lost=True, silent_s=299.0)]) == []
    assert kinds(decide([make_machine(1, Stage.DRAINING, is_lost=True, silent_s=300.0)])) == [End]


# --- until done


def test_once_no_job_is_left_all_pods_go_at_once_and_none_waits_for_more():
    machines = make_machines(Stage.READY, Stage.PAUSED, Stage.STARTING)
    assert kinds(decide(machines, limits=make_limits(least=2, until_done=True))) == [End, Drain, Drain]
    assert decide(limits=make_limits(least=2, until_done=True)) == []
    assert kinds(decide(limits=make_limits(least=2))) == [Order, Order]


def test_the_last_job_is_finished():
    assert decide(make_machines(Stage.BUSY), make_work(1, running=1), limits=make_limits(until_done=True)) == []


# --- ends


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (make_machine(1, Stage.FAILED, told="EXITED"), "RunPod says EXITED"),
        (make_machine(1, Stage.UNFIT, told="3 GPUs of 8"), "3 GPUs of 8"),
        (make_machine(1, Stage.LEAVING, told="idle"), "it leaves: idle"),
        (make_machine(1, Stage.SILENT, silent_s=300.0), "not heard for 5 min"),
        (make_machine(1, Stage.STARTING, age_s=1200.0), "it is STARTING after 20 min"),
        (make_machine(1, Stage.STARTING, age_s=1800.0, pod={"status": "RUNNING"}), "not ready after 30 min"),
        (make_machine(1, Stage.BUSY, lease_s=0.0), "its lease is over"),
        (make_machine(1, Stage.READY, pod={"gpu": {"id": "NVIDIA L40S", "count": 8}}), "it has 8 x NVIDIA L40S"),
        (make_machine(1, Stage.READY, pod={"cost": 16.0}), "it costs 16.00 USD per hour, by the catalog 15.12"),
    ],
)
def test_a_pod_ends(machine, why):
    (end,) = decide([machine])
    assert isinstance(end, End)
    assert why in end.why


@pytest.mark.parametrize(
    "machine",
    [
        make_machine(1, Stage.SILENT, silent_s=299.0),
        make_machine(1, Stage.STARTING, age_s=1199.0),
        make_machine(1, Stage.STARTING, age_s=1799.0, pod={"status": "RUNNING"}),
        make_machine(1, Stage.LEAVING, job="a"),
        make_machine(1, Stage.ORDERED, age_s=800.0),
    ],
)
def test_a_pod_is_waited_for(machine):
    assert decide([machine]) == []


def test_a_new_word_of_runpod_s_is_told_and_left_alone():
    (alert,) = decide([make_machine(1, Stage.STRANGE, told="HIBERNATING")])
    assert "HIBERNATING, a word that is new to us" in alert.text


def test_the_budget_s_end_ends_all():
    machines = make_machines(Stage.BUSY, Stage.READY, Stage.STARTING)
    decisions = decide(machines, make_work(9, running=1), spent_usd=399.9)
    assert kinds(decisions)[:3] == [End, End, End]
    assert [one.is_busy for one in decisions[:3]] == [True, False, False]


def test_an_end_that_does_not_come_is_asked_for_again_less_and_less_often():
    machine = make_machine(1, Stage.ENDING)
    decided = plan(make_situation([machine]))
    assert kinds(decided.decisions) == [End]
    pauses = []
    for _ in range(7):
        ending = decided.memory.endings[machine.name]
        pauses.append((ending.again_at - NOW).total_seconds())
        assert kinds(decide([machine], memory=decided.memory)) == []
        due = decided.memory.with_(endings={machine.name: ending.model_copy(update={"again_at": NOW})})
        decided = plan(make_situation([machine], memory=due))
    assert pauses == [15, 30, 60, 120, 240, 300, 300]


def test_an_end_that_takes_long_is_told():
    machine = make_machine(1, Stage.ENDING)
    ending = Ending(since=NOW - timedelta(seconds=300), asked=5, again_at=NOW + timedelta(seconds=9))
    (alert,) = decide([machine], memory=make_memory(endings={machine.name: ending}))
    assert "was asked to end 5 min ago, and still bills" in alert.text


# --- failures


def test_three_failures_begin_a_pause_and_a_pod_that_serves_ends_it():
    machines = [make_machine(number, Stage.FAILED, told="ERROR") for number in (1, 2, 3)]
    memory = plan(make_situation(machines)).memory
    assert memory.paused_until == NOW + timedelta(minutes=15)
    assert memory.is_probing
    again = plan(make_situation(make_machines(Stage.READY), memory=memory.with_(booted=()))).memory
    assert (again.paused_until, again.is_probing, again.failures) == (None, False, ())


def test_the_data_center_of_a_machine_that_is_not_fit_is_avoided():
    memory = plan(make_situation([make_machine(1, Stage.UNFIT, told="NCCL hangs")])).memory
    assert memory.avoided["US-KS-2"].until == NOW + timedelta(minutes=30)


# --- strays


def make_stray(number=7, age_s=600.0) -> Pod:
    name = f"h3render-farm-pod-{number:016x}"
    return make_pod(id=f"stray{number}", name=name, createdAt=(NOW - timedelta(seconds=age_s)).isoformat())


def test_a_pod_that_no_order_tells_of_ends_once_it_is_old_enough():
    assert decide(strays=[make_stray(age_s=599.0)]) == []
    (end,) = decide(strays=[make_stray()])
    assert (type(end), end.pod_id) == (End, "stray7")


def test_what_is_older_than_the_ledger_is_told_and_left_alone():
    for born_at in (None, NOW - timedelta(seconds=599)):
        (alert,) = decide(strays=[make_stray()], born_at=born_at)
        assert isinstance(alert, Alert)
        assert "older than the ledger" in alert.text


def test_more_than_half_of_all_are_too_many_to_end():
    machines = make_machines(Stage.READY, Stage.READY)
    busy = make_work(2, running=2)
    assert kinds(decide(machines, busy, strays=[make_stray(7), make_stray(8)])) == [End, End]
    (alert,) = decide(machines, busy, strays=[make_stray(7), make_stray(8), make_stray(9)])
    assert "3 pods of ours are in no order" in alert.text


# --- the rest


def test_what_is_known_better_is_noted_first():
    move = Move(make_row(RowState.UNKNOWN), RowState.CREATED, "pod1", "found by its name")
    assert decide(moves=[move])[0] == Settle(move)


def test_a_boot_is_measured_once():
    machine = make_machine(1, Stage.READY, age_s=400.0)
    memory = plan(make_situation([machine], memory=make_memory())).memory
    assert memory.boots_s == (400.0,)
    assert plan(make_situation([machine], memory=memory)).memory.boots_s == (400.0,)


def test_the_same_situation_gives_the_same_decisions_and_lines():
    situation = make_situation(make_machines(Stage.READY, Stage.FAILED, Stage.DRAINING), make_work(9))
    assert plan(situation) == plan(situation)
    assert plan(situation).to_lines()[0].startswith("want     ")
