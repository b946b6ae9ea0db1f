"""What can go wrong with rented machines.

InfraError                     exit
├── GuardRefused       2  wrong usage, a guard or a check of ours: nothing was sent that could change anything
│   └── LedgerUnusable    what we have ordered cannot be read or recorded
├── LeaseHeld         75  another reconciler acts for the fleet: nothing was done
├── LeaseLost          1  another one does now, or nobody can tell: stop acting
├── LedgerLost         1  Redis no longer knows orders whose pods may bill: delete nothing
├── NoCapacity         4  no data center has, or gives, what was ordered
├── NotAsOrdered       5  another pod came than was ordered; it was terminated
├── OutcomeUnknown     6  a pod may exist, and bill
├── GaveUpWaiting      7
├── PodFailed          1  it has ended, or cannot recover
├── KeyUnusable        3  missing, or no key could look like that
└── ApiError           1  RunPod's answer, or that there is none
    ├── KeyRefused        3  401
    ├── RefusedByRunPod   5  it says no, and would say it again: 409, 413 and any 4xx that has no class
    │   ├── RequestRejected    400: a rule is broken, or no capacity   -> a create tries the next data center
    │   ├── BalanceTooLow      402                                     -> no create will succeed
    │   ├── AccessDenied       403                                     -> a create tries the next data center
    │   ├── VersionRetired     410: this version of the API is no more
    │   └── ContractBroken     422: a bug of ours
    ├── NotFound          1  404: gone, or not ours
    ├── RateLimited       1  429                       -> the same call again, once it may be
    ├── NotReached        1  refused, DNS, TLS: nothing was sent
    ├── ServerFailed      1  5xx                       -> reads and DELETE again; a create may have worked
    ├── ConnectionLost    1  time-out, reset, cut short -> likewise
    └── AnswerInvalid     1  not what the document has -> a create may have worked
        └── ListIncomplete     a list with gaps, from which no absence follows

The class decides whether a call may be repeated, whether a create may have worked, and the exit code.
"""


class InfraError(Exception):
    """Base of all errors that `infra` raises."""

    exit_code = 1


class GuardRefused(InfraError):
    """Nothing was sent that could change anything; the text names the value and the remedy."""

    exit_code = 2


class LedgerUnusable(GuardRefused):
    """The file that tells what was ordered cannot be read or written."""


class LeaseHeld(InfraError):
    """Another reconciler acts for this fleet; the text tells which, and for how long at least."""

    exit_code = 75  # try again later: one that was killed holds its lease for two minutes more


class LeaseLost(InfraError):
    """Another reconciler acts for this fleet by now, or Redis does not say: whoever gets this stops acting."""


class LedgerLost(InfraError):
    """Redis has lost orders that the local copy has: nothing is ended until a person has looked."""


class KeyUnusable(InfraError):
    """There is no key to send."""

    exit_code = 3


class NoCapacity(InfraError):
    """Nowhere at this count, by the catalog or by the answers to a create."""

    exit_code = 4


class NotAsOrdered(InfraError):
    """The pod that came differs from the order, or costs more; it is terminated."""

    exit_code = 5


class OutcomeUnknown(InfraError):
    """A create or a termination may have worked or not; the text tells how to look."""

    exit_code = 6


class GaveUpWaiting(InfraError):
    """The time to wait is over; the pod goes on."""

    exit_code = 7


class PodFailed(InfraError):
    """The pod that is waited for will not become ready."""


class ApiError(InfraError):
    """A call that had no success."""

    may_repeat = False  # the same call, where doing it twice does no harm
    changed_nothing = False  # if it was a create, there is certainly no pod
    tries_next_place = False  # if it was a create

    def __init__(self, text: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class KeyRefused(ApiError):
    """The key is missing, wrong or expired."""

    exit_code = 3
    changed_nothing = True


class RefusedByRunPod(ApiError):
    """RunPod says no, and would say it again."""

    exit_code = 5
    changed_nothing = True


class RequestRejected(RefusedByRunPod):
    """A rule between fields is broken, or nothing is free: RunPod has one code for both."""

    tries_next_place = True


class BalanceTooLow(RefusedByRunPod):
    """The account cannot pay an hour of it."""


class AccessDenied(RefusedByRunPod):
    """The key lacks a right, or the account a pool of machines."""

    tries_next_place = True


class VersionRetired(RefusedByRunPod):
    """This version of the API has ended."""


class ContractBroken(RefusedByRunPod):
    """The request is not what the document has."""


class NotFound(ApiError):
    """Nothing has this id, or it is another account's."""

    changed_nothing = True


class RateLimited(ApiError):
    """Too many calls of this account."""

    may_repeat = True
    changed_nothing = True


class NotReached(ApiError):
    """No connection, so nothing was sent."""

    may_repeat = True
    changed_nothing = True


class ServerFailed(ApiError):
    """RunPod failed, perhaps after it had done what was asked."""

    may_repeat = True


class ConnectionLost(ApiError):
    """The connection ended, or the time, before the answer was whole."""

    may_repeat = True


class AnswerInvalid(ApiError):
    """The answer is too long, no JSON, or lacks what must be in it."""


class ListIncomplete(AnswerInvalid):
    """A list whose pages do not fit together."""
