"""Picks the next job that this worker can serve, and puts away what is no job at all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from uuid import uuid4

import structlog
from redis import Redis

from jobs.errors import RequestTooNew
from jobs.events import Failed
from jobs.lease import Lease, Leases, Waiting
from jobs.offers import Offer
from jobs.queues import QueueName
from jobs.request import ResolvedRequest
from worker import metrics
from worker.errors import RequestRefused
from worker.outage import insist
from worker.payload import read_waiting

WINDOW = 64  # jobs of a queue that are looked at in one go
PREEMPT_AFTER_S = 2.0  # until then a worker that is idle will have taken the job

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that is ours."""

    lease: Lease
    request: ResolvedRequest
    left_s: float = inf  # until its deadline


class _Place(Enum):
    STAYS = "stays"  # it waits for another worker
    MOVED = "moved"  # put away, or somebody was first: what was behind it has come forward


class Dequeue:
    """The queues of one worker, first things first. Threads may share it."""

    def __init__(
        self, leases: Leases, queues: Sequence[str], offer: Offer, worker: str, *, longest_wait_s: float
    ) -> None:
        self._leases, self._queues, self._worker = leases, queues, worker
        self.offer = offer
        self._longest_wait_s = longest_wait_s

    def take(self) -> Taken | None:
        """The next job; None if nothing here is for us.

        First who may preempt, then whoever has waited too long, then queue by queue and by age.
        """
        for waiting in self._urgent(None):
            if isinstance(taken := self._look_at(waiting), Taken):
                return taken
        for least_wait_s in (self._longest_wait_s, -inf):
            for queue in self._queues:
                if (taken_there := self._take_from(queue, least_wait_s)) is not None:
                    return taken_there
        return None

    def find_urgent(self, lease: Lease, redis: Redis) -> str | None:
        """The waiting job that the one we run is to make way for; it is told to one worker only.

        redis  a client of the calling thread's own
        """
        if lease.queue != QueueName.BATCH:
            return None
        for waiting in self._urgent(redis):
            if waiting.waited_s > PREEMPT_AFTER_S and self._leases.make_way(waiting.job_id, self._worker, redis):
                return waiting.job_id
        return None

    def _urgent(self, redis: Redis | None) -> Iterator[Waiting]:
        """Jobs that may preempt, and that we can serve."""
        if QueueName.HIGH not in self._queues:
            return
        for waiting in self._leases.peek([QueueName.HIGH], 0, WINDOW, redis)[0]:
            request = self._read(waiting)
            if isinstance(request, ResolvedRequest) and request.preempt and not self.offer.missing(request):
                yield waiting

    def _take_from(self, queue: str, least_wait_s: float) -> Taken | None:
        """The first that is for us, of those at the head that have waited for longer."""
        first = 0
        while True:
            [window] = self._leases.peek([queue], first, WINDOW)
            late = [waiting for waiting in window if waiting.waited_s > least_wait_s]
            have_moved = False
            for waiting in late:
                found = self._look_at(waiting)
                if isinstance(found, Taken):
                    return found
                have_moved = have_moved or found is _Place.MOVED
            if len(late) < WINDOW:
                return None
            if not have_moved:
                first += WINDOW

    def _look_at(self, waiting: Waiting) -> Taken | _Place:
        request = self._read(waiting)
        if isinstance(request, _Place):
            return request
        left_s = inf if request.deadline_s is None else request.deadline_s - waiting.waited_s
        if left_s <= 0:
            self._give_up(waiting, request)
            return _Place.MOVED
        if self.offer.missing(request):
            return _Place.STAYS
        lease = self._claim(waiting)
        return _Place.MOVED if lease is None else Taken(lease, request, left_s)

    def _claim(self, waiting: Waiting) -> Lease | None:
        nonce = uuid4().hex  # one for all tries: the answer to the first may have been lost
        return insist(lambda: self._leases.claim(waiting, self._worker, nonce))

    def _read(self, waiting: Waiting) -> ResolvedRequest | _Place:
        try:
            return read_waiting(waiting)
        except RequestTooNew:
            return _Place.STAYS  # while an upgrade rolls over the farm
        except RequestRefused as exc:
            log.warning("job refused", job_id=ascii(waiting.job_id[:200]), reason=str(exc))
            self._leases.quarantine(waiting, str(exc), Failed(attempt=0, reason=str(exc)), self._worker)
            return _Place.MOVED

    def _give_up(self, waiting: Waiting, request: ResolvedRequest) -> None:
        reason = f"still queued after {waiting.waited_s:.0f} s, wanted within {request.deadline_s:g} s"
        event = Failed(attempt=0, cause="deadline", reason=reason)
        if self._leases.give_up(waiting, event, reason, self._worker):
            log.warning("job given up", job_id=waiting.job_id, reason=reason)
            metrics.count_end("failed", "deadline")
