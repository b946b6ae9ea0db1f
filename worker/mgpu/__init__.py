"""A persistent multi-GPU fleet that runs one job at a time: one process per GPU, in lockstep, results streamed.

It knows no queue, no store and no model. Begin with `runner.py` (what a runner is) and `controller.py` (what a
caller does); `rank.py` is what a rank process runs, `fleet.py` and `supervisor.py` are how it is watched.
"""

from worker.mgpu.controller import MGPUController
from worker.mgpu.errors import (
    AsymmetricRunnerError,
    ControllerAlreadyStartedError,
    ControllerBusyError,
    ControllerDeadError,
    ControllerForkedError,
    ControllerNotStartedError,
    ControllerShutdownError,
    ControllerStateError,
    FailureKind,
    FatalFleetError,
    FleetDesyncError,
    JobTimeoutError,
    RankDiedError,
    RankFailure,
    RankOutOfMemoryError,
    RunnerError,
    RunnerFailedError,
    StartError,
    StartTimeoutError,
    SymmetricRunnerError,
    UnreadableResultError,
    WrongOwnerError,
)
from worker.mgpu.runner import Borrowed, MGPURunner, NCCLGroups
from worker.mgpu.state import Phase, State
from worker.mgpu.status import ControllerStatus, RankStatus
from worker.mgpu.stream import Stream

__all__ = [
    "AsymmetricRunnerError",
    "Borrowed",
    "ControllerAlreadyStartedError",
    "ControllerBusyError",
    "ControllerDeadError",
    "ControllerForkedError",
    "ControllerNotStartedError",
    "ControllerShutdownError",
    "ControllerStateError",
    "ControllerStatus",
    "FailureKind",
    "FatalFleetError",
    "FleetDesyncError",
    "JobTimeoutError",
    "MGPUController",
    "MGPURunner",
    "NCCLGroups",
    "Phase",
    "RankDiedError",
    "RankFailure",
    "RankOutOfMemoryError",
    "RankStatus",
    "RunnerError",
    "RunnerFailedError",
    "StartError",
    "StartTimeoutError",
    "State",
    "Stream",
    "SymmetricRunnerError",
    "UnreadableResultError",
    "WrongOwnerError",
]
