"""Situations as small as a test needs them: pods of 15.12 USD per hour, at NOW, with room for more of all."""

from datetime import timedelta

from infra.ledger import RowState
from infra.placement import Place
from infra.reconciler.limits import Limits
from infra.reconciler.machine import Machine, Stage
from infra.reconciler.memory import Memory
from infra.reconciler.situation import Situation, Work
from tests.infra.pods import NOW, make_pod, make_row

USD = 15.12
HOUR_S = 3600.0
ROW_STATES = {Stage.ORDERED: RowState.INTENT, Stage.DRAINING: RowState.DRAINING, Stage.ENDING: RowState.TERMINATING}
STATUSES = {Stage.STARTING: "STARTING", Stage.FAILED: "EXITED", Stage.STRANGE: "HIBERNATING"}


def make_limits(**fields) -> Limits:
    return Limits(**({"least": 0, "most": 4, "usd_per_hour": 60.48, "usd_total": 400.0} | fields))


def make_machine(number: int, stage: Stage, *, age_s=None, moved_s=0.0, lease_s=5 * HOUR_S, pod=None, **fields):
    """The pod with that number.

    moved_s  since its row changed
    """
    name = f"h3render-farm-pod-{number:016x}"
    if age_s is None:
        age_s = 300.0 if stage in (Stage.ORDERED, Stage.STARTING) else HOUR_S
    row = make_row(
        ROW_STATES.get(stage, RowState.CREATED),
        age_s,
        token=f"{number:016x}",
        name=name,
        pod_id=None if stage is Stage.ORDERED else f"pod{number}",
        at=NOW - timedelta(seconds=moved_s),
        lease_until=NOW + timedelta(seconds=lease_s),
    )
    has_pod = stage is not Stage.ORDERED
    answer = {"id": f"pod{number}", "name": name, "status": STATUSES.get(stage, "RUNNING"), "cost": USD} | (pod or {})
    alive = {"is_heard": True, "takes_jobs": True} if stage in (Stage.READY, Stage.BUSY) else {}
    job = {"job": f"job{number}"} if stage is Stage.BUSY else {}
    found = make_pod(**answer) if has_pod else None
    return Machine(**({"row": row, "stage": stage, "pod": found, "age_s": age_s} | alive | job | fields))


def make_machines(*stages: Stage) -> list[Machine]:
    return [make_machine(number, stage) for number, stage in enumerate(stages, 1)]


def make_work(jobs=0, seconds_each=600.0, running=0) -> Work:
    return Work(
        seconds=jobs * seconds_each,
        waiting=jobs - running,
        running=running,
        p75_s=seconds_each,
        p99_s=2 * seconds_each,
    )


def make_memory(machines=(), *, idle_s=0.0, surplus_s=None, **fields) -> Memory:
    """With the machines known as booted, and as idle for so long."""
    known = {
        "booted": tuple(one.name for one in machines),
        "idle_since": {one.name: NOW - timedelta(seconds=idle_s) for one in machines if one.stage is Stage.READY},
        "surplus_since": None if surplus_s is None else NOW - timedelta(seconds=surplus_s),
    }
    return Memory(**(known | fields))


def make_situation(machines=(), work=None, **fields) -> Situation:
    made = {
        "now": NOW,
        "limits": make_limits(),
        "machines": list(machines),
        "work": work if work is not None else make_work(),
        "spent_usd": 0.0,
        "memory": make_memory(machines),
        "born_at": NOW - timedelta(days=1),
        "places": [Place("US-KS-2", "HIGH"), Place("EU-RO-1", "LOW")],
        "usd_per_hour": USD,
    }
    return Situation(**(made | fields))
