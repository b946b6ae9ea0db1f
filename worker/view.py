"""One worker as its pages show it, and whether it is well. Knows no HTTP and no Prometheus."""

from dataclasses import dataclass

from jobs.workers import WorkerRecord, WorkerState
from worker.farm import Farm
from worker.mgpu.state import State

SILENT_BEATS = 2
HUNG_S = 30.0  # longer than a healthy heartbeat waits for anything
DEAD = {State.POISONED, State.STOPPED}  # of a fleet


@dataclass(frozen=True, slots=True)
class View:
    """At a moment."""

    record: WorkerRecord
    farm: Farm
    failed_starts: int  # of the fleet, in a row
    unanswered_s: float  # since Redis has answered
    unlooked_s: float  # since the heartbeat has gone round

    @property
    def fault(self) -> str:
        """What is not well; empty for a worker that does what it should, be it to load, to pause or to leave."""
        record = self.record
        if record.state is WorkerState.UNHEALTHY:
            return record.reason
        if self.unlooked_s > HUNG_S:
            return f"the heartbeat hangs or has died: not heard of for {self.unlooked_s:.0f} s"
        if self.unanswered_s > SILENT_BEATS * record.beat_s:
            return f"Redis has answered no beat for {self.unanswered_s:.0f} s"
        if record.fleet in DEAD and record.state is not WorkerState.DRAINING:
            return f"the fleet is {record.fleet}"
        return ""
