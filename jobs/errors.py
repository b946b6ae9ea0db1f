"""What can go wrong on the client's side.

JobsError
├── RequestInvalid    a field of the request is wrong          -> nothing was queued
│   └── RequestTooNew     it was written by a later version    -> the job waits for newer workers
├── PictureInvalid    a picture cannot be used, or is not there
├── SettingsInvalid   a flag or variable is wrong
├── JobNotFound       no job has this id
├── JobFailed         the job ended without a result
├── CancelRefused     the job has ended, or another attempt runs
├── WorkerNotFound    no worker has this name
├── KeyConflict       an idempotency key stands for another request
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


class PictureInvalid(JobsError):
    """A file, or an object in the store, is no picture that a request could use; the text names it and the remedy."""


class SettingsInvalid(JobsError):
    """A flag or a variable of the environment has a value that does not do."""


class JobNotFound(JobsError):
    """No job has this id, or its record has expired."""


class JobFailed(JobsError):
    """The job ended without a result."""


class CancelRefused(JobsError):
    """The job has ended already, or the attempt that is meant is not the one that runs."""


class WorkerNotFound(JobsError):
    """No worker that is known to the queue goes by this name."""


class KeyConflict(JobsError):
    """A job with this idempotency key exists and renders something else."""


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
