"""A fleet of pods as lines and as JSON."""

from collections.abc import Iterator

from infra.reconciler.lease import LeaseFacts
from infra.reconciler.machine import Machine
from infra.reconciler.notes import Notes
from infra.reconciler.situation import Situation
from jobs.in_words import say_count, say_duration
from jobs.plain_text import plain


def describe_status(situation: Situation, notes: Notes, holder: LeaseFacts | None) -> Iterator[str]:
    """Who acts, what there is to do and to pay, and a line for each pod."""
    yield f"reconciler  {holder if holder is not None else 'none: nobody starts or ends pods'}"
    work = situation.work
    yield f"work        {say_duration(work.seconds)} in {say_count(work.jobs, 'job')}, {work.running} of them running"
    yield (
        f"money       {situation.committed_usd_per_hour:.2f} USD per hour now, {notes.spend.campaign_usd:.2f} USD in "
        "this campaign"
    )
    for trouble in _find_trouble(situation):
        yield f"trouble     {plain(trouble)}"
    for machine in situation.machines:
        yield _describe_machine(machine, situation)
    for pod in situation.strays:
        yield f"{'no order':<10} {pod.cost:>7.2f} USD/h  {plain(pod.name)} ({pod.id})"
    if not situation.machines and not situation.strays:
        yield "no pod"


def _describe_machine(machine: Machine, situation: Situation) -> str:
    place = (machine.pod.data_center_id if machine.pod is not None else None) or machine.row.data_center
    lease = machine.lease_left_s(situation.now)
    told = [f"job {machine.job}"] if machine.job else []
    told += [machine.told] if machine.told else []
    return plain(
        f"{machine.stage:<10} {machine.usd_per_hour:>7.2f} USD/h  {machine.describe()}  {place}  "
        f"{say_duration(machine.age_s)} old, lease {say_duration(max(0.0, lease))}  {'; '.join(told)}"
    ).rstrip()


def _find_trouble(situation: Situation) -> Iterator[str]:
    memory, now = situation.memory, situation.now
    if memory.stopped:
        yield f"no pod is ordered: {memory.stopped}"
    if (pause_s := memory.pause_left_s(now)) > 0:
        yield f"pods failed; none is ordered for {say_duration(pause_s)}"
    for place, avoided in memory.avoided_at(now).items():
        yield f"{place} is not tried for {say_duration((avoided.until - now).total_seconds())}: {avoided.why}"


def status_to_dict(situation: Situation, notes: Notes, holder: LeaseFacts | None) -> dict[str, object]:
    """The same for programs."""
    work = situation.work
    return {
        "reconciler": {"holder": holder.holder, "left_s": holder.left_s} if holder is not None else None,
        "work": {"seconds": work.seconds, "waiting": work.waiting, "running": work.running},
        "usd_per_hour": situation.committed_usd_per_hour,
        "usd_of_campaign": notes.spend.campaign_usd,
        "trouble": list(_find_trouble(situation)),
        "pods": [_machine_to_dict(machine, situation) for machine in situation.machines],
        "strays": [{"id": pod.id, "name": pod.name, "usd_per_hour": pod.cost} for pod in situation.strays],
    }


def _machine_to_dict(machine: Machine, situation: Situation) -> dict[str, object]:
    return {
        "name": machine.name,
        "id": machine.pod_id,
        "stage": machine.stage,
        "told": machine.told,
        "job": machine.job,
        "data_center": machine.row.data_center,
        "usd_per_hour": machine.usd_per_hour,
        "age_s": machine.age_s,
        "lease_until": machine.row.lease_until.isoformat() if machine.row.lease_until is not None else None,
    }
