"""What goes on beside a job, in the heartbeat's thread: leases are kept and taken back, orders followed, hangs seen."""

import time
from collections.abc import Callable, Sequence

import structlog
from redis import Redis

from jobs.errors import LeaseLost
from jobs.lease import Leases, Orders
from jobs.workers import WorkerRecord, write_worker
from worker import metrics
from worker.dequeue import Dequeue
from worker.duty import Duty, Running
from worker.errors import Canceled, DeadlinePassed, PutBack, Superseded
from worker.farm import Farm, read_farm
from worker.mgpu import MGPUController
from worker.standing import Standing

_CANCELED = "somebody has asked for its end"

log = structlog.get_logger()


class Attendance:
    """Of one worker. Only the heartbeat's thread calls `beat`, `look` and `follow_orders`.

    sign_on     renews RQ's record of the worker
    sees_farm   whether each beat counts what waits in the queues, and who works
    """

    def __init__(
        self,
        duty: Duty,
        controller: MGPUController,
        leases: Leases,
        dequeue: Dequeue,
        standing: Standing,
        queues: Sequence[str],
        *,
        sign_on: Callable[[Redis], None],
        sees_farm: bool,
    ) -> None:
        self._duty, self._controller, self._leases, self._dequeue = duty, controller, leases, dequeue
        self._standing, self._queues, self._sign_on, self._sees_farm = standing, queues, sign_on, sees_farm
        self.farm = Farm()

    def beat(self, redis: Redis) -> None:
        """Keep our lease, take back what others have lost, and say that we live."""
        if (running := self._duty.running) is not None:
            self._beat_lease(redis, running)  # first: it is what matters
        reaped = self._leases.reap(redis)
        for job_id in (*reaped.queued, *reaped.dead):
            log.warning("took a job back, its lease had run out", job_id=job_id, dead=job_id in reaped.dead)
        metrics.count_taken_back(reaped)
        self._leases.sweep(self._queues, redis)
        self._renew_records(redis)
        if self._sees_farm:
            self.farm = read_farm(redis, self._queues)

    def _beat_lease(self, redis: Redis, running: Running) -> None:
        if running.attempt.is_stalled():
            return  # should we fail to end it, the lease must run out
        try:
            running.lease.beat(redis)
        except LeaseLost as exc:
            running.attempt.abort(Superseded(str(exc)))

    def _renew_records(self, redis: Redis) -> None:
        """A Redis that lost its last second may not have them any more."""
        self._standing.read_clock(redis)
        self._standing.read_gpus()
        write_worker(redis, self.record())
        if self._controller.is_alive:
            self._sign_on(redis)

    def record(self) -> WorkerRecord:
        """The worker, for whoever looks from outside. Any thread may call this."""
        duty, running = self._duty, self._duty.running
        state = duty.state(has_fleet=self._controller.is_alive)
        return self._standing.record(state, duty.why_replaced or duty.why_idle, running.record() if running else None)

    def look(self) -> None:
        """See to what must not wait for Redis: limits, deadlines, and the way out."""
        running, departure, now = self._duty.running, self._duty.departure, time.monotonic()
        if running is None:
            if departure.is_asked and not self._controller.is_alive:
                self._controller.shutdown(graceful_timeout=0)  # ends the start
            return
        if verdict := departure.verdict(running.attempt.step_left_s(), now):
            running.attempt.abort(verdict)
        if now > running.ends_at:
            running.attempt.abort(DeadlinePassed("its deadline has passed while it was rendered"))
        running.attempt.is_stalled()

    def follow_orders(self, redis: Redis) -> None:
        """About once a second: what somebody has asked for."""
        running = self._duty.running
        orders = self.read_orders(running, redis)
        self._duty.heed(orders)
        if running is None:
            return
        if orders.cancel:
            running.attempt.abort(Canceled(_CANCELED))
        elif orders.pause or self._duty.must_leave:
            pass  # it would not take the job that it makes way for
        elif (job_id := self._dequeue.find_urgent(running.lease, redis)) is not None:
            log.info("making way", job_id=running.lease.job_id, urgent=job_id)
            running.attempt.abort(PutBack(f"made way for job {job_id}"))

    def read_orders(self, running: Running | None, redis: Redis | None = None) -> Orders:
        """What is asked of the worker, and of what it runs. `redis`: a client of the calling thread's own."""
        names = (self._standing.name, self._standing.id)
        return self._leases.read_orders(names, running.lease if running else None, redis)

    def cancel(self, job_id: str | None) -> None:
        """End this job between two steps, if it is the one that runs. Any thread may call this."""
        if (running := self._duty.running) is not None and running.lease.job_id == job_id:
            running.attempt.abort(Canceled(_CANCELED))
