"""What ends an attempt, and what it means for the job and the fleet: the class decides, nobody reads messages.

WorkerError
├── RequestRefused   the payload or every rank refuses the input  -> job fails, fleet stays
├── AttemptLost      the attempt is gone, the job is not          -> back to the head of its queue, new fleet
│   ├── Stalled          the fleet is silent for too long
│   └── OutOfMemory      a rank had no memory left                -> and this worker takes no job of that size again
├── Interrupted      this worker was told to stop                 -> back to the head of its queue, uncharged
├── PutBack          the same, and the fleet could stop in time   -> likewise, and the fleet stays
├── Canceled         somebody has asked for the job's end         -> canceled between two steps, fleet stays
├── DeadlinePassed   nobody wants the job any more                -> job fails between two steps, fleet stays
├── NumberUsed       an attempt of this number has written before -> back to the head of its queue, uncharged
├── SpoolFull        no room for outputs on this machine          -> back to the head of its queue, as interrupted
├── Superseded       the lease ran out, another has the job       -> nothing: all of ours is discarded, fleet stays
├── UploadFailed     the store keeps refusing                     -> job fails, its pieces are kept, fleet stays
├── StartRefused     this machine cannot serve jobs as configured -> the command ends before it takes one
├── FleetNotStarted  the ranks did not come up                    -> tried again, in a fresh process
└── Unhealthy        they did not come up time and again          -> the command ends, and is not to be started again
"""

from typing import Literal

from jobs.lease import Charge
from worker.life import FailedStart


class WorkerError(Exception):
    """Base of all errors that `worker` raises."""

    job_may_retry = False
    charge = Charge.FATAL  # of the attempt, if the job may be tried again
    fleet_is_healthy = True
    cause: Literal["request", "store", "deadline"] = "request"  # of a job that fails by it


class RequestRefused(WorkerError):
    """The request is wrong in a way that only the worker or the model could see, or a picture of it is not there."""


class AttemptLost(WorkerError):
    """A rank died, hung, diverged, or raised what nobody expected."""

    job_may_retry = True
    fleet_is_healthy = False


class Stalled(AttemptLost):
    """The fleet has yielded nothing for longer than it may."""


class OutOfMemory(AttemptLost):
    """A rank had no memory left for this render."""


TOLD_TO_STOP = "the worker was told to stop"


class Interrupted(WorkerError):
    """The fleet was shut down under the job, or before it, because this worker was told to stop at once."""

    job_may_retry = True
    charge = Charge.DRAINED
    fleet_is_healthy = False


class PutBack(WorkerError):
    """The fleet is asked to stop between two steps, because this worker leaves or another job is more urgent."""

    job_may_retry = True
    charge = Charge.DRAINED


class Canceled(WorkerError):
    """Somebody has asked for the job's end."""


class DeadlinePassed(WorkerError):
    """The job was wanted by a time that has passed."""

    cause = "deadline"


class NumberUsed(WorkerError):
    """The queue has forgotten its last second, in which an attempt of this number began."""

    job_may_retry = True
    charge = Charge.DRAINED


class SpoolFull(WorkerError):
    """The disk where outputs wait for their upload is full."""

    job_may_retry = True
    charge = Charge.INTERRUPTED  # else it might be begun here for ever


class Superseded(WorkerError):
    """Whatever this attempt would write now, another has the right to."""


class UploadFailed(WorkerError):
    """The object store refused a piece of the output, or did not give a picture of the request."""

    cause = "store"


class StartRefused(WorkerError):
    """A setting, the checkpoint, the queue or the store does not do; the text gives the remedy."""


class FleetNotStarted(WorkerError):
    """A rank raised, died or was too slow before it was ready, or its self-test failed."""

    def __init__(self, text: str, failed_start: FailedStart) -> None:
        super().__init__(text)
        self.failed_start = failed_start


class Unhealthy(WorkerError):
    """This machine's fleet does not start; a person has to look at it."""
