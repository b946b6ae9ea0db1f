"""Picks the next job that this worker can serve, and puts away what is no job at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from uuid import uuid4

import structlog

from jobs.events import Failed
from jobs.lease import Lease, Leases, Waiting
from jobs.offers import Offer
from jobs.request import ResolvedRequest
from worker.errors import RequestRefused
from worker.outage import insist
from worker.payload import read_waiting

WINDOW = 64  # jobs of a queue that are looked at in one go

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that is ours."""

    lease: Lease
    request: ResolvedRequest


class Dequeue:
    """The queues of one worker, first things first."""

    def __init__(
        self, leases: Leases, queues: Sequence[str], offer: Offer, worker: str, *, longest_wait_s: float
    ) -> None:
        self._leases, self._queues, self._offer, self._worker = leases, queues, offer, worker
        self._longest_wait_s = longest_wait_s

    def take(self) -> Taken | None:
        """The next job: whoever has waited too long, then queue by queue and by age; None if nothing here is for us."""
        for least_wait_s in (self._longest_wait_s, -inf):
            for queue in self._queues:
                if (taken := self._take_from(queue, least_wait_s)) is not None:
                    return taken
        return None

    def _take_from(self, queue: str, least_wait_s: float) -> Taken | None:
        """The first that is for us, of those at the head that have waited for longer."""
        first = 0
        while True:
            [window] = self._leases.peek([queue], first, WINDOW)
            late = [waiting for waiting in window if waiting.waited_s > least_wait_s]
            have_moved = False
            for waiting in late:
                request = self._read(waiting)
                if request is not None and self._offer.missing(request):
                    continue
                if request is not None and (lease := self._claim(waiting)) is not None:
                    return Taken(lease, request)
                have_moved = True  # put away, or somebody was first: what was behind it has come forward
            if len(late) < WINDOW:
                return None
            if not have_moved:
                first += WINDOW

    def _claim(self, waiting: Waiting) -> Lease | None:
        nonce = uuid4().hex  # one for all tries: the answer to the first may have been lost
        return insist(lambda: self._leases.claim(waiting, self._worker, nonce))

    def _read(self, waiting: Waiting) -> ResolvedRequest | None:
        try:
            return read_waiting(waiting)
        except RequestRefused as exc:
            log.warning("job refused", job_id=ascii(waiting.job_id[:200]), reason=str(exc))
            self._leases.quarantine(waiting, str(exc), Failed(attempt=0, reason=str(exc)), self._worker)
            return None
