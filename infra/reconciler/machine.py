"""One order with what RunPod, its worker and the pod itself say of it: what a reconciler decides about."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from infra.answers import ON_THE_WAY, Pod
from infra.guards import find_cost
from infra.ledger import Row, RowState
from infra.pod_report import BootState, PodReport
from jobs.workers import WorkerRecord, WorkerState


class Stage(StrEnum):
    """Of one machine, from its order to its end."""

    ORDERED = "ordered"  # there may be a pod, and no list shows it
    STARTING = "starting"  # RunPod places it, or its worker loads the model
    READY = "ready"  # it could take a job
    BUSY = "busy"
    PAUSED = "paused"  # by a person
    SILENT = "silent"  # its worker was heard, and is not any more
    UNFIT = "unfit"  # by its own word, it or its worker will not serve
    LEAVING = "leaving"  # its worker was told to leave, or the pod wants to end
    FAILED = "failed"  # RunPod has stopped it
    STRANGE = "strange"  # in a status that is new to us
    DRAINING = "draining"  # it takes no job any more, by our word
    ENDING = "ending"  # its end was asked for


# Those that there are to be.
COUNTED = (Stage.ORDERED, Stage.STARTING, Stage.READY, Stage.BUSY, Stage.PAUSED, Stage.SILENT, Stage.STRANGE)
SERVING = (Stage.READY, Stage.BUSY)


@dataclass(frozen=True, slots=True)
class Machine:
    """As one look has found it."""

    row: Row
    stage: Stage
    pod: Pod | None
    age_s: float  # since its order
    job: str | None = None  # that its worker renders
    takes_jobs: bool = False  # its worker is neither paused nor on its way out
    is_heard: bool = False  # its worker is alive and means to stay
    is_lost: bool = False  # its worker is not heard any more, and may render all the same
    silent_s: float = 0.0  # since its worker was heard
    told: str = ""  # why, as the worker or the pod says it

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def usd_per_hour(self) -> float:
        """What it costs, or may: by its price until RunPod tells."""
        price = self.row.usd_per_hour
        return find_cost(self.pod, price) if self.pod is not None else price

    @property
    def pod_id(self) -> str | None:
        """None: there is no pod yet, as far as is known."""
        return self.pod.id if self.pod is not None else self.row.pod_id

    def lease_left_s(self, now: datetime) -> float:
        until = self.row.lease_until
        return (until - now).total_seconds() if until is not None else float("inf")

    def describe(self) -> str:
        return self.name if self.pod is None else f"{self.name} ({self.pod.id})"


def join_machines(
    rows: Iterable[Row],
    pods: Sequence[Pod],
    workers: Iterable[WorkerRecord],
    reports: Mapping[str, PodReport],
    now: datetime,
    server_now_s: float,
) -> tuple[Machine, ...]:
    """The machines of all orders that are not closed, oldest first.

    pods  a complete list
    server_now_s  by Redis's clock, as the workers' beats are
    """
    by_name = find_oldest(pods)
    latest = {record.name: record for record in sorted(workers, key=lambda record: record.started_at)}
    return tuple(
        _join(row, by_name.get(row.name), latest.get(row.name), reports.get(row.name), now, server_now_s)
        for row in rows
        if not row.has_ended
    )


def find_oldest(pods: Iterable[Pod]) -> dict[str, Pod]:
    """By name, of those that are not gone. Two of a name are one too many."""
    newest_first = sorted(pods, key=lambda pod: pod.created_at, reverse=True)
    return {pod.name: pod for pod in newest_first if not pod.is_gone}


def _join(
    row: Row, pod: Pod | None, worker: WorkerRecord | None, report: PodReport | None, now: datetime, server_now_s: float
) -> Machine:
    stage, told = _judge(row, pod, worker, report)
    return Machine(
        row=row,
        stage=stage,
        pod=pod,
        age_s=row.age_s(now),
        job=worker.job.job_id if worker is not None and worker.is_alive and worker.job is not None else None,
        takes_jobs=worker is not None and worker.state in (WorkerState.READY, WorkerState.BUSY),
        is_heard=worker is not None and worker.is_alive and worker.state is not WorkerState.DRAINING,
        is_lost=worker is not None and worker.state is WorkerState.LOST,
        silent_s=max(0.0, server_now_s - worker.beat_at) if worker is not None else 0.0,
        told=told,
    )


def _judge(row: Row, pod: Pod | None, worker: WorkerRecord | None, report: PodReport | None) -> tuple[Stage, str]:
    """Its stage, and what was said that explains it."""
    if row.state is RowState.TERMINATING:
        return Stage.ENDING, row.cause
    if pod is None:
        return Stage.ORDERED, ""
    if pod.has_failed:
        return Stage.FAILED, pod.status
    if report is not None and report.wants_end:
        return (Stage.LEAVING if report.state is BootState.LEAVING else Stage.UNFIT), report.reason
    if row.state is RowState.DRAINING:
        return Stage.DRAINING, row.cause
    if pod.status in ON_THE_WAY:
        return Stage.STARTING, ""
    if pod.status != "RUNNING":
        return Stage.STRANGE, pod.status
    return _STAGES[worker.state] if worker is not None else Stage.STARTING, worker.reason if worker is not None else ""


_STAGES = {
    WorkerState.STARTING: Stage.STARTING,
    WorkerState.READY: Stage.READY,
    WorkerState.BUSY: Stage.BUSY,
    WorkerState.PAUSED: Stage.PAUSED,
    WorkerState.DRAINING: Stage.LEAVING,
    WorkerState.UNHEALTHY: Stage.UNFIT,
    WorkerState.LOST: Stage.SILENT,
}
