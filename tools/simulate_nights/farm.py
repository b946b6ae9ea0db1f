"""The jobs and the workers as they truly are: who renders what, what waits, and what a lost attempt leaves."""

import math
from collections import deque
from dataclasses import dataclass
from functools import partial

from tools.simulate_nights.nights import Job
from tools.simulate_nights.timeline import Timeline

LEASE_S = 60.0  # after which an attempt is given up whose worker is not heard
CHECKPOINT_S = 60.0  # of work, between two


@dataclass(eq=False, slots=True)
class Worker:
    """Of one pod, once it is ready."""

    name: str
    started_s: float
    is_paused: bool = False
    silent_since_s: float | None = None
    is_gone: bool = False  # it never comes back
    job: Job | None = None
    since_s: float = 0.0  # it renders that job, or none
    attempts: int = 0
    idle_s: float = 0.0  # while it could have rendered

    @property
    def is_alive(self) -> bool:
        return not self.is_gone and self.silent_since_s is None

    @property
    def is_idle(self) -> bool:
        """It would render, if there were something."""
        return self.is_alive and not self.is_paused and self.job is None

    @property
    def is_busy(self) -> bool:
        return self.is_alive and self.job is not None


class Farm:
    """One queue, oldest first."""

    def __init__(self, timeline: Timeline) -> None:
        self.jobs: list[Job] = []  # that were submitted
        self.waiting: deque[Job] = deque()
        self.lost: list[Job] = []  # whose lease has not run out yet
        self.workers: dict[str, Worker] = {}  # by the pod's name, also those that are gone
        self._timeline = timeline

    def submit(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._timeline.after(job.submitted_s - self._timeline.now_s, partial(self._receive, job))

    def _receive(self, job: Job) -> None:
        self.jobs.append(job)
        self.waiting.append(job)
        self._spread()

    @property
    def left(self) -> int:
        """Jobs without a result."""
        return sum(not job.ended_s for job in self.jobs)

    # --- workers come and go

    def start_worker(self, name: str, *, is_paused: bool) -> None:
        now_s = self._timeline.now_s
        self.workers[name] = Worker(name, now_s, is_paused, since_s=now_s)
        self._spread()

    def end_worker(self, name: str) -> None:
        """With its pod."""
        if (worker := self.workers.get(name)) is not None and not worker.is_gone:
            self._silence(worker)
            worker.is_gone = True

    def silence_worker(self, name: str, for_s: float) -> None:
        worker = self.workers.get(name)
        if worker is None or not worker.is_alive:
            return
        self._silence(worker)
        if for_s < math.inf:
            self._timeline.after(for_s, lambda: self._hear_again(worker))

    def _silence(self, worker: Worker) -> None:
        """What it renders is lost once its lease has run out."""
        if not worker.is_alive:
            return
        self._note_idleness(worker)
        worker.silent_since_s = self._timeline.now_s
        if (job := worker.job) is not None:
            job.kept_s = self._find_kept(worker, job)
            worker.job = None
            worker.attempts += 1
            self.lost.append(job)
            self._timeline.after(LEASE_S, lambda: self._take_back(job))

    def _hear_again(self, worker: Worker) -> None:
        if not worker.is_gone:
            worker.silent_since_s, worker.since_s = None, self._timeline.now_s
            self._spread()

    def _take_back(self, job: Job) -> None:
        self.lost.remove(job)
        self.waiting.appendleft(job)
        self._spread()

    # --- what they are told

    def pause(self, worker: Worker) -> None:
        if not worker.is_paused:
            self._note_idleness(worker)
            worker.is_paused = True

    def resume(self, worker: Worker) -> None:
        if not worker.is_paused:
            return
        worker.is_paused = False
        if worker.job is None:
            worker.since_s = self._timeline.now_s
        self._spread()

    def drain(self, worker: Worker) -> None:
        """It hands its job back at once, and leaves."""
        self._note_idleness(worker)
        worker.is_gone = True
        if (job := worker.job) is not None:
            job.kept_s = self._find_kept(worker, job)
            worker.job = None
            worker.attempts += 1
            self.waiting.appendleft(job)
            self._spread()

    # --- rendering

    def _spread(self) -> None:
        for worker in self.workers.values():
            if not self.waiting:
                return
            if worker.is_idle:
                self._begin(worker, self.waiting.popleft())

    def _begin(self, worker: Worker, job: Job) -> None:
        self._note_idleness(worker)
        now_s = self._timeline.now_s
        worker.job, worker.since_s = job, now_s
        job.began_s = now_s if job.began_s is None else job.began_s
        attempt = worker.attempts
        self._timeline.after(job.whole_s - job.kept_s, lambda: self._finish(worker, job, attempt))

    def _finish(self, worker: Worker, job: Job, attempt: int) -> None:
        if worker.attempts != attempt:
            return  # it was lost
        job.ended_s.append(self._timeline.now_s)
        worker.job, worker.since_s = None, self._timeline.now_s
        worker.attempts += 1
        self._spread()

    def _find_kept(self, worker: Worker, job: Job) -> float:
        rendered_s = self._timeline.now_s - worker.since_s
        return job.kept_s + rendered_s // CHECKPOINT_S * CHECKPOINT_S

    def find_remaining_s(self, worker: Worker, job: Job) -> float:
        return max(1.0, job.whole_s - job.kept_s - (self._timeline.now_s - worker.since_s))

    def _note_idleness(self, worker: Worker) -> None:
        if worker.is_idle:
            worker.idle_s += self._timeline.now_s - worker.since_s
            worker.since_s = self._timeline.now_s
