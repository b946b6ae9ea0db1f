"""What can go wrong on the client's side.

JobsError
├── RequestInvalid    a field of the request is wrong          -> nothing was queued
│   └── RequestTooNew     it was written by a later version    -> the job waits for newer workers
├── BatchInvalid      rows of a file of shots are wrong        -> nothing was queued
├── PictureInvalid    a picture cannot be used, or is not there
├── SettingsInvalid   a flag or variable is wrong
├── JobNotFound       no job has this id
│   └── ResultMissing     it finished, and its result is not in the store
├── JobNotFinished    it has no result yet
├── EventIdInvalid    what is given to go on from is no event's id
├── EventsGone        the job has finished, and nothing tells of it any more
├── JobFailed         the job ended without a result
├── CancelRefused     the job has ended, or another attempt runs
├── WorkerNotFound    no worker has this name
├── KeyConflict       an idempotency key stands for another request
├── TooManyJobs       its owner has as many jobs as they may   -> nothing was queued
├── LeaseLost         the job is no longer this attempt's to run
├── RedisUnavailable  the queue does not answer
│   └── RedisRefused      a person has to act: wrong password, rights or settings
└── StoreUnavailable  the object store refuses or does not answer
    ├── StoreRefused  it will refuse this again: trying again is in vain
    └── ObjectExists  an object that is written once is there already

Each text says what, with the value, and the remedy; the command line prints it and exits 2 (1 for JobFailed).
"""


class JobsError(Exception):
    """Base of all errors that `jobs` raises."""


class RequestInvalid(JobsError):
    """Fields of a request are wrong; each line of the text names one, its value and the remedy."""


class RequestTooNew(RequestInvalid):
    """A queued request has a version that this program does not know."""


class BatchInvalid(JobsError):
    """Rows of a file of shots are wrong; each line of the text names one, what is wrong with it and the remedy."""


class PictureInvalid(JobsError):
    """A file, or an object in the store, is no picture that a request could use; the text names it and the remedy."""


class SettingsInvalid(JobsError):
    """A flag or a variable of the environment has a value that does not do."""


class JobNotFound(JobsError):
    """No job has this id, or its record has expired."""


class ResultMissing(JobNotFound):
    """The job finished, but its result is not in this store, or no longer there."""


class JobNotFinished(JobsError):
    """The job still waits or runs, so it has no result."""


class EventIdInvalid(JobsError):
    """Events are to be told from an id on that no event could have."""


class EventsGone(JobsError):
    """The job has finished, but its last event is not there, or not one that this version can read."""


class JobFailed(JobsError):
    """The job ended without a result."""


class CancelRefused(JobsError):
    """The job has ended already, or the attempt that is meant is not the one that runs."""


class WorkerNotFound(JobsError):
    """No worker that is known to the queue goes by this name."""


class KeyConflict(JobsError):
    """A job with this idempotency key exists and renders something else."""


class TooManyJobs(JobsError):
    """As many jobs of one owner as they may have have not ended yet."""


class LeaseLost(JobsError):
    """The lease ran out, and the job was given to another attempt."""


class RedisUnavailable(JobsError):
    """The queue's Redis does not answer, or refuses what we need."""


class RedisRefused(RedisUnavailable):
    """Password, rights or settings are wrong; a person has to act."""


class StoreUnavailable(JobsError):
    """The object store refuses a read or a write, or does not answer."""


class StoreRefused(StoreUnavailable):
    """Keys, rights or names are wrong; a person has to act."""


class ObjectExists(StoreUnavailable):
    """An object that may be written only once has been written before."""
