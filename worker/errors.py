"""What ends an attempt, and what it means for the job and the fleet: the class decides, nobody reads messages.

WorkerError
├── RequestRefused   the payload or every rank refuses the input  -> job fails, fleet stays
├── AttemptLost      the attempt is gone, the job is not          -> back to the head of its queue, new fleet
├── Interrupted      this worker was told to stop                 -> back to the head of its queue, uncharged
├── UploadFailed     the store keeps refusing                     -> job fails, its pieces are kept, fleet stays
├── StartRefused     this machine cannot serve jobs as configured -> the command ends before it takes one
├── FleetNotStarted  the ranks did not come up                    -> the command ends before it takes one
└── WorkLoopBroken   RQ's loop ended without being told to        -> the command fails
"""


class WorkerError(Exception):
    """Base of all errors that `worker` raises."""

    job_may_retry = False
    attempt_is_charged = True
    fleet_is_healthy = True


class RequestRefused(WorkerError):
    """The request is wrong in a way that only the worker or the model could see."""


class AttemptLost(WorkerError):
    """A rank died, hung, diverged, or raised what nobody expected."""

    job_may_retry = True
    fleet_is_healthy = False


class Interrupted(WorkerError):
    """The fleet was shut down under the job because this worker was told to stop."""

    job_may_retry = True
    attempt_is_charged = False
    fleet_is_healthy = False


class UploadFailed(WorkerError):
    """The object store refused a piece of the output."""


class StartRefused(WorkerError):
    """A setting, the checkpoint, the queue or the store does not do; the text gives the remedy."""


class FleetNotStarted(WorkerError):
    """A rank raised, died or was too slow before it was ready."""


class WorkLoopBroken(WorkerError):
    """RQ's loop swallows what it does not expect and returns as if all were well."""
