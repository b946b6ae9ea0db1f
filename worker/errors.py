"""What ends an attempt, and what it means for the job and the fleet: the class decides, nobody reads messages.

WorkerError
├── RequestRefused   the payload or every rank refuses the input  -> job fails, fleet stays
├── AttemptLost      the attempt is gone, the job is not          -> back to the head of its queue, new fleet
│   └── Stalled          the fleet is silent for too long
├── Interrupted      this worker was told to stop                 -> back to the head of its queue, uncharged
├── NumberUsed       an attempt of this number has written before -> back to the head of its queue, uncharged
├── SpoolFull        no room for outputs on this machine          -> back to the head of its queue, as interrupted
├── Superseded       the lease ran out, another has the job       -> nothing: all of ours is discarded, fleet stays
├── UploadFailed     the store keeps refusing                     -> job fails, its pieces are kept, fleet stays
├── StartRefused     this machine cannot serve jobs as configured -> the command ends before it takes one
└── FleetNotStarted  the ranks did not come up                    -> the command ends before it takes one
"""

from typing import Literal

from jobs.lease import Charge


class WorkerError(Exception):
    """Base of all errors that `worker` raises."""

    job_may_retry = False
    charge = Charge.FATAL  # of the attempt, if the job may be tried again
    fleet_is_healthy = True
    cause: Literal["request", "store"] = "request"  # of a job that fails by it


class RequestRefused(WorkerError):
    """The request is wrong in a way that only the worker or the model could see."""


class AttemptLost(WorkerError):
    """A rank died, hung, diverged, or raised what nobody expected."""

    job_may_retry = True
    fleet_is_healthy = False


class Stalled(AttemptLost):
    """The fleet has yielded nothing for longer than it may."""


TOLD_TO_STOP = "the worker was told to stop"


class Interrupted(WorkerError):
    """The fleet was shut down under the job because this worker was told to stop."""

    job_may_retry = True
    charge = Charge.DRAINED
    fleet_is_healthy = False


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
    """The object store refused a piece of the output."""

    cause = "store"


class StartRefused(WorkerError):
    """A setting, the checkpoint, the queue or the store does not do; the text gives the remedy."""


class FleetNotStarted(WorkerError):
    """A rank raised, died or was too slow before it was ready."""
