"""Which machines have to end, whatever the queue wants, and why. Pure functions over one situation."""

from dataclasses import dataclass

from infra.answers import Pod
from infra.guards import find_excess
from infra.ledger import Row
from infra.reconciler.machine import Machine, Stage
from infra.reconciler.situation import Situation
from jobs.in_words import say_duration

PLACED_WITHIN_S = 1200.0  # by RunPod, image and all
HEARD_WITHIN_BOOTS, HEARD_WITHIN_S = 3.0, 1800.0  # its worker, for the first time; the later of the two
SILENT_S = 300.0  # after which nobody waits for a worker's next beat
DRAIN_JOBS, LEAST_DRAIN_S = 1.5, 300.0  # how long what runs on a pod that drains may take: so many times the longest
GIVE_BACK_S = 180.0  # for a worker that was told to hand its job back
LEAD_SHARE = 0.25  # of its lease that a pod may spend on draining


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one machine ends."""

    why: str
    is_failure: bool = True  # counts towards a pause; a pod that leaves as it was told to is none
    avoids_place: bool = False  # the data center's next machine would likely be no better


def find_fault(machine: Machine, situation: Situation) -> Fault | None:
    """None for one that may stay, or that was asked to end already."""
    if machine.stage is Stage.ENDING:
        return None
    if machine.lease_left_s(situation.now) <= 0:
        return Fault("its lease is over", is_failure=False)
    if machine.pod is not None and (wrong := _find_difference(machine.pod, machine.row)):
        return Fault(wrong, avoids_place=True)
    match machine.stage:
        case Stage.FAILED:
            return Fault(f"RunPod says {machine.told}")
        case Stage.UNFIT:
            return Fault(f"it will not serve: {machine.told}", avoids_place=True)
        case Stage.LEAVING:
            return Fault(f"it leaves: {machine.told}", is_failure=False) if _has_left(machine) else None
        case Stage.SILENT if machine.silent_s >= SILENT_S:
            return Fault(f"its worker was not heard for {say_duration(machine.silent_s)}")
        case Stage.STARTING:
            return _find_delay(machine, situation)
    return None


def _find_difference(pod: Pod, row: Row) -> str:
    """Of a pod that was found by its name, and that nobody has looked at."""
    gpu, count = (pod.gpu.id, pod.gpu.count) if pod.gpu is not None else ("no GPU", 0)
    if (gpu, count) != (row.gpu, row.count):
        return f"it has {count} x {gpu}, ordered were {row.count} x {row.gpu}"
    return "; ".join(find_excess(pod, row.usd_per_hour))


def _has_left(machine: Machine) -> bool:
    """A worker that was told to leave has a while to hand its job back."""
    return machine.job is None or machine.silent_s >= SILENT_S


def _find_delay(machine: Machine, situation: Situation) -> Fault | None:
    assert machine.pod is not None
    if machine.pod.status != "RUNNING":
        if machine.age_s < PLACED_WITHIN_S:
            return None
        return Fault(f"it is {machine.pod.status} after {say_duration(machine.age_s)}")
    if machine.age_s < max(HEARD_WITHIN_S, HEARD_WITHIN_BOOTS * situation.boot_s):
        return None
    return Fault(f"its worker is not ready after {say_duration(machine.age_s)}")


# --- drains


def drain_s(situation: Situation) -> float:
    """That a job may go on for on a pod that drains."""
    return max(LEAST_DRAIN_S, DRAIN_JOBS * situation.work.p99_s)


def nears_its_end(machine: Machine, situation: Situation) -> bool:
    """Whether it is time to drain it, so that its lease does not cut a job off."""
    lead_s = min(drain_s(situation), LEAD_SHARE * situation.limits.max_hours * 3600)
    return machine.lease_left_s(situation.now) <= lead_s


def has_drained(machine: Machine) -> bool:
    """Nothing runs on it, and nothing can begin to. Of a worker that is not heard, that is not known for a while."""
    if machine.is_lost:
        return machine.silent_s >= SILENT_S
    return machine.job is None and not machine.takes_jobs


def is_overdue(machine: Machine, situation: Situation) -> bool:
    """Its job has had its time, or its lease is about to end."""
    has_had_its_time = _drained_s(machine, situation) >= drain_s(situation)
    return has_had_its_time or machine.lease_left_s(situation.now) <= GIVE_BACK_S


def is_stuck(machine: Machine, situation: Situation) -> bool:
    """It was told to hand its job back, and has not."""
    return _drained_s(machine, situation) >= drain_s(situation) + GIVE_BACK_S


def _drained_s(machine: Machine, situation: Situation) -> float:
    """Since it was told to take no job any more."""
    return (situation.now - machine.row.at).total_seconds()
