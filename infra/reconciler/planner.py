"""plan(): what to do about one situation. It reads nothing, waits for nothing, and says the same to the same.

What must end ends; what must be drained is drained; then the number of pods is brought nearer to what is wanted, by
letting one that drains take jobs again before another is ordered; and the other drains go on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from infra.ledger import RowState
from infra.placement import Place
from infra.reconciler.decisions import Alert, Decision, Drain, End, GiveBack, Hold, Order, Plan, Settle, Undrain
from infra.reconciler.health import Fault, find_fault, has_drained, is_overdue, is_stuck, nears_its_end
from infra.reconciler.machine import SERVING, Machine, Stage
from infra.reconciler.memory import Ending, Failure, Memory
from infra.reconciler.orphans import count_ending, judge_strays
from infra.reconciler.situation import Situation
from infra.reconciler.wanted import (
    Wanted,
    count_wanted,
    find_returning,
    is_overspent,
    is_spent,
    needs_warning,
    say_budget,
)
from jobs.in_words import say_duration

ASK_AGAIN_S, LONGEST_PAUSE_S = 15.0, 300.0  # for an end that does not come
ALERT_ENDING_S = 300.0
LIFE_BOOTS = 2.0  # a pod that was paid to start is kept for at least so many times that
NEXT_STAGE = {End: Stage.ENDING, Drain: Stage.DRAINING}


def plan(situation: Situation) -> Plan:
    """The decisions, in the order in which they are carried out, and what is to be remembered."""
    situation = _learn(situation)
    ends = [*_end_faulty(situation), *_sweep(situation)]
    situation = _after(situation, ends)
    drains = list(_drain_due(situation))
    situation = _after(situation, drains)
    wanted = count_wanted(situation)
    situation = _watch_surplus(situation, wanted)
    changes = list(_change_number(situation, wanted))
    decisions = [*map(Settle, situation.moves), *ends, *drains, *changes, *_go_on(situation, changes)]
    decisions += [*_warn(situation)]
    memory = _remember(situation, decisions)
    return Plan(
        wanted=wanted.count,
        have=len(situation.counted),
        left=len(situation.machines) + count_ending(situation),
        jobs=situation.work.jobs,
        why=wanted.why,
        is_spent=is_spent(situation),
        is_going_down=situation.is_going_down,
        decisions=decisions,
        memory=memory,
    )


def _after(situation: Situation, decisions: Sequence[Decision]) -> Situation:
    """As it will be once they are carried out."""
    stages = {
        (one.name if isinstance(one, End) else one.machine.name): NEXT_STAGE[type(one)]
        for one in decisions
        if isinstance(one, End | Drain)
    }
    machines = [replace(one, stage=stages.get(one.name, one.stage)) for one in situation.machines]
    return replace(situation, machines=machines)


# --- what looking teaches


def _learn(situation: Situation) -> Situation:
    """Since when each pod is idle, how long those took that are ready for the first time, and which failed."""
    memory, names = situation.memory, {machine.name for machine in situation.machines}
    idle = [machine.name for machine in situation.machines if machine.stage is Stage.READY]
    memory = memory.with_(
        idle_since={name: memory.idle_since.get(name, situation.now) for name in idle},
        booted=tuple(name for name in memory.booted if name in names),
        endings={name: ending for name, ending in memory.endings.items() if name in names},
    )
    for machine in situation.in_stage(*SERVING):
        if machine.name not in memory.booted:
            memory = memory.note_boot(machine.name, machine.age_s)
    for machine in situation.machines:
        memory = _note_fault(memory, machine, situation)
    return replace(situation, memory=memory)


def _note_fault(memory: Memory, machine: Machine, situation: Situation) -> Memory:
    fault = find_fault(machine, situation)
    if fault is None or machine.pod_id is None:
        return memory
    if fault.is_failure:
        failure = Failure(at=situation.now, name=machine.name, data_center=machine.row.data_center, why=fault.why)
        memory = memory.note_failure(failure)
    return memory.note_unfit(machine.row.data_center, fault.why, situation.now) if fault.avoids_place else memory


def _watch_surplus(situation: Situation, wanted: Wanted) -> Situation:
    """Since when there have been too many, at every look."""
    has_surplus = wanted.count < len(situation.counted)
    since = (situation.memory.surplus_since or situation.now) if has_surplus else None
    return replace(situation, memory=situation.memory.with_(surplus_since=since))


# --- what must end


def _end_faulty(situation: Situation) -> Iterator[End]:
    for machine in situation.machines:
        if machine.pod_id is None:
            continue  # nothing to end yet
        if (fault := _find_reason(machine, situation)) is not None:
            yield _end(machine, fault.why, is_failure=fault.is_failure)


def _find_reason(machine: Machine, situation: Situation) -> Fault | None:
    if machine.stage is Stage.ENDING:
        ending = situation.memory.endings.get(machine.name)
        is_due = ending is None or ending.again_at <= situation.now
        return Fault("its end was asked for", is_failure=False) if is_due else None
    if is_overspent(situation):
        return Fault(say_budget(situation), is_failure=False)
    if (fault := find_fault(machine, situation)) is not None:
        return fault
    has_nothing_to_finish = machine.stage is Stage.STARTING
    why = _must_go(machine, situation) if has_nothing_to_finish else ""
    return Fault(why, is_failure=False) if why else None


def _end(machine: Machine, why: str, *, is_failure: bool = False) -> End:
    assert machine.pod_id is not None, "what ends, or drains, has a pod"
    return End(machine.pod_id, machine.name, why, is_busy=machine.job is not None, is_failure=is_failure)


def _sweep(situation: Situation) -> Iterator[End | Alert]:
    sweep = judge_strays(situation)
    for pod in sweep.ends:
        yield End(pod.id, pod.name, f"no order tells of it, {say_duration(pod.age_s(situation.now))} old")
    yield from map(Alert, sweep.alerts)


# --- drains


def _must_go(machine: Machine, situation: Situation) -> str:
    """Why it may take no job any more, whatever waits; empty if it may."""
    if situation.is_going_down:
        return "all pods are to go"
    if situation.is_done:
        return "no job is left"
    if is_spent(situation):
        return say_budget(situation)
    if nears_its_end(machine, situation):
        return f"its lease ends in {say_duration(max(0.0, machine.lease_left_s(situation.now)))}"
    return ""


def _drain_due(situation: Situation) -> Iterator[Drain]:
    for machine in situation.in_stage(*SERVING, Stage.PAUSED):
        if why := _must_go(machine, situation):
            yield Drain(machine, why)


def _go_on(situation: Situation, changes: Sequence[Decision]) -> Iterator[Decision]:
    """With the drains that earlier looks began."""
    kept = {change.machine.name for change in changes if isinstance(change, Undrain)}
    for machine in situation.in_stage(Stage.DRAINING):
        if machine.name in kept or machine.row.state is not RowState.DRAINING:
            continue
        if has_drained(machine):
            yield _end(machine, machine.row.cause or "it has drained")
        elif is_stuck(machine, situation):
            yield _end(machine, f"it did not hand its job back: {machine.row.cause}")
        elif is_overdue(machine, situation):
            yield GiveBack(machine, machine.row.cause)
        elif machine.takes_jobs and machine.job is None:
            yield Drain(machine, machine.row.cause)  # it has not heard yet


# --- how many


def _change_number(situation: Situation, wanted: Wanted) -> Iterator[Decision]:
    missing = wanted.count - len(situation.counted)
    if missing < 0:
        yield from _lower(situation)
        return
    back = find_returning(situation)[:missing]
    yield from (Undrain(machine, wanted.why) for machine in back)
    yield from _raise(situation, wanted, missing - len(back))


def _raise(situation: Situation, wanted: Wanted, missing: int) -> Iterator[Decision]:
    if missing <= 0:
        return
    if why := _find_obstacle(situation):
        yield Hold(f"{missing} more wanted: {why}")
        return
    if situation.memory.is_probing:
        missing = 1
    places = _find_places(situation)
    for _ in range(missing):
        yield Order(places, situation.usd_per_hour, wanted.why)


def _find_obstacle(situation: Situation) -> str:
    """Why no pod is ordered at this look; empty if one may be."""
    memory, now = situation.memory, situation.now
    if memory.stopped:
        return f"{memory.stopped}; `h3render pods up --resume` goes on once that is mended"
    if (pause_s := memory.pause_left_s(now)) > 0:
        return f"pods failed ({memory.failures[-1].why}); one is tried in {say_duration(pause_s)}"
    if memory.is_probing and situation.in_stage(Stage.ORDERED, Stage.STARTING):
        return "pods failed before, and it is not known yet whether the one that is tried will serve"
    if memory.raised_at is not None and (now - memory.raised_at).total_seconds() < situation.limits.raise_every_s:
        return "some were ordered a moment ago"
    if not _find_places(situation):
        return _say_full(situation)
    return ""


def _find_places(situation: Situation) -> Sequence[Place]:
    only, memory = situation.limits.data_centers, situation.memory
    allowed = [place for place in situation.places if not only or place.data_center in only]
    return [place for place in allowed if memory.may_try(place.data_center, situation.now)]


def _say_full(situation: Situation) -> str:
    avoided = [f"{name} ({one.why})" for name, one in situation.memory.avoided_at(situation.now).items()]
    if avoided:
        return f"no data center has stock, but for those that are not tried again yet: {', '.join(avoided)}"
    return "no data center has stock"


def _lower(situation: Situation) -> Iterator[Decision]:
    """One at a time, the one that has been idle longest; never one that renders."""
    since = situation.memory.surplus_since
    if since is None or (situation.now - since).total_seconds() < situation.limits.surplus_s:
        return
    if situation.in_stage(Stage.DRAINING):
        return
    spare = [machine for machine in situation.in_stage(Stage.READY) if _may_go(machine, situation)]
    if spare:
        victim = max(spare, key=lambda one: (_idle_s(one, situation), -one.lease_left_s(situation.now)))
        yield Drain(victim, f"idle for {say_duration(_idle_s(victim, situation))}, and more pods than are wanted")


def _may_go(machine: Machine, situation: Situation) -> bool:
    idle_s = max(situation.limits.idle_s, situation.boot_s)
    return _idle_s(machine, situation) >= idle_s and machine.age_s >= LIFE_BOOTS * situation.boot_s


def _idle_s(machine: Machine, situation: Situation) -> float:
    since = situation.memory.idle_since.get(machine.name, situation.now)
    return (situation.now - since).total_seconds()


# --- what is told, and what is remembered


def _warn(situation: Situation) -> Iterator[Alert]:
    if needs_warning(situation):
        yield Alert(say_budget(situation))
    for machine in situation.in_stage(Stage.STRANGE):
        yield Alert(f"pod {machine.describe()} is {machine.told}, a word that is new to us: it is left alone")
    for name, ending in situation.memory.endings.items():
        if (waits_s := (situation.now - ending.since).total_seconds()) >= ALERT_ENDING_S:
            yield Alert(f"pod {name} was asked to end {say_duration(waits_s)} ago, and still bills")


def _remember(situation: Situation, decisions: Sequence[Decision]) -> Memory:
    memory, now = situation.memory, situation.now
    if any(isinstance(one, Order) for one in decisions):
        memory = memory.with_(raised_at=now)
    by_name = {machine.name: machine for machine in situation.machines}
    for one in decisions:
        if isinstance(one, End) and (machine := by_name.get(one.name)) is not None:
            memory = _note_end(memory, machine, situation)
    return memory


def _note_end(memory: Memory, machine: Machine, situation: Situation) -> Memory:
    now, before = situation.now, memory.endings.get(machine.name)
    asked = before.asked + 1 if before is not None else 1
    pause = timedelta(seconds=min(ASK_AGAIN_S * 2 ** (asked - 1), LONGEST_PAUSE_S))
    ending = Ending(since=before.since if before is not None else now, asked=asked, again_at=now + pause)
    return memory.with_(endings={**memory.endings, machine.name: ending})
