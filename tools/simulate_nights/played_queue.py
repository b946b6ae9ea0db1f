"""The farm as a reconciler sees it: what the queue's Redis tells, and how orders reach workers."""

from collections import Counter
from collections.abc import Iterator

from redis.exceptions import ConnectionError as RedisConnectionError

from infra.pod_report import BootState, PodReport
from infra.reconciler.queue import Told
from infra.reconciler.situation import Work
from jobs.offers import Offer
from jobs.render_times import percentile
from jobs.workers import JobRecord, WorkerRecord, WorkerState
from tools.simulate_nights.cloud import Cloud
from tools.simulate_nights.farm import Farm, Worker
from tools.simulate_nights.nights import CLASSES, FAULTS_END_S, JobClass, Night
from tools.simulate_nights.timeline import BEGIN, Timeline

BEAT_S = 20.0  # three are missed before a worker counts as lost
AFTER_STEPS = 0.1  # of a job, that is thought to be left of a lost attempt at least
USUAL = CLASSES[2]  # the size that is reckoned with while there is no job
BORN_S = BEGIN.timestamp()


class PlayedQueue:
    """What was told to a worker stays told until its pod is forgotten, also to one that starts later."""

    def __init__(self, night: Night, timeline: Timeline, farm: Farm) -> None:
        self.cloud: Cloud  # whoever makes it gives it
        self.paused: set[str] = set()
        self.told_left = 0  # jobs without a result, when it was last asked
        self._random, self._rates = night.random("queue"), night.rates
        self._timeline, self._farm = timeline, farm
        self._forgotten: set[str] = set()
        self._leaving: set[str] = set()

    # --- what it tells

    def look(self) -> Told:
        """Raises RedisError."""
        if self._random.random() < self._rates.queue_fails and self._timeline.now_s < FAULTS_END_S:
            raise RedisConnectionError("Redis does not answer")
        now_s = BORN_S + self._timeline.now_s
        records = [self._describe(worker).seen(now_s) for worker in self._known_workers()]
        self.told_left = self._farm.left
        return Told(self.measure(), records, {report.name: report for report in self._report()}, now_s)

    def _known_workers(self) -> Iterator[Worker]:
        for name, worker in self._farm.workers.items():
            if name not in self._forgotten and name not in self._leaving:
                yield worker

    def measure(self) -> Work:
        farm = self._farm
        waiting = Counter(job.kind for job in farm.waiting)
        running = [worker for worker in farm.workers.values() if worker.job is not None]
        seconds = sum(kind.p75_s * count for kind, count in waiting.items())
        seconds += sum(farm.find_remaining_s(worker, worker.job) for worker in running if worker.job is not None)
        seconds += sum(max(job.kind.p75_s - job.kept_s, AFTER_STEPS * job.kind.p75_s) for job in farm.lost)
        likely: Counter[JobClass] = waiting + Counter(worker.job.kind for worker in running if worker.job is not None)
        likely += Counter(job.kind for job in farm.lost)
        kinds = list(likely.items()) or [(USUAL, 1)]
        return Work(
            seconds=seconds,
            waiting=len(farm.waiting),
            running=len(running) + len(farm.lost),
            p75_s=percentile([(kind.p75_s, count) for kind, count in kinds], 0.75),
            p99_s=percentile([(kind.p99_s, count) for kind, count in kinds], 0.99),
        )

    def _describe(self, worker: Worker) -> WorkerRecord:
        """As of its last beat, whatever has become of it."""
        beat_s = self._timeline.now_s if worker.silent_since_s is None else worker.silent_since_s
        state = WorkerState.READY if not worker.is_paused else WorkerState.PAUSED
        return _RECORD.model_copy(
            update={
                "id": worker.name,
                "name": worker.name,
                "state": state if worker.job is None else WorkerState.BUSY,
                "started_at": BORN_S + worker.started_s,
                "beat_at": BORN_S + beat_s,
                "job": None if worker.job is None else _JOB.model_copy(update={"job_id": worker.job.id}),
            }
        )

    def _report(self) -> Iterator[PodReport]:
        for pod in self.cloud.living:
            if pod.is_unfit:
                yield self._make_report(pod.name, pod.id, BootState.UNFIT, "too few GPUs")
            elif pod.name in self._leaving:
                yield self._make_report(pod.name, pod.id, BootState.LEAVING, "its worker was drained")

    def _make_report(self, name: str, pod_id: str, state: BootState, reason: str) -> PodReport:
        at = BORN_S + self._timeline.now_s
        return PodReport(name=name, pod_id=pod_id, state=state, reason=reason, at=at, wants_end=True)

    # --- what it is told

    def note_contact(self) -> None:
        """No pod of ours here asks for that."""

    def pause(self, worker: str) -> None:
        if (found := self._farm.workers.get(worker)) is not None and found.is_alive:
            self.paused.add(worker)
            self._tell(found)

    def resume(self, worker: str) -> None:
        self.paused.discard(worker)
        if (found := self._farm.workers.get(worker)) is not None:
            self._tell(found)

    def _tell(self, worker: Worker) -> None:
        """It hears a little later whatever is true then."""

        def hear() -> None:
            if worker.name in self.paused:
                self._farm.pause(worker)
            else:
                self._farm.resume(worker)

        self._timeline.after(self._random.uniform(0, self._rates.hears_within_s), hear)

    def drain(self, worker: str) -> None:
        found = self._farm.workers.get(worker)
        if found is None or not found.is_alive or worker in self._leaving:
            return

        def leave() -> None:
            if found.is_alive:
                self._leaving.add(worker)
                self._farm.drain(found)

        self._timeline.after(self._random.uniform(0, self._rates.hears_within_s), leave)

    def forget(self, worker: str) -> None:
        self.paused.discard(worker)
        self._forgotten.add(worker)


_RECORD = WorkerRecord(
    id="worker",
    name="worker",
    host="pod",
    pid=1,
    state=WorkerState.READY,
    started_at=0,
    beat_at=0,
    beat_s=BEAT_S,
    offer=Offer(),
    fleet="idle",
)
_JOB = JobRecord(job_id="job", attempt=1, queue="standard", phase="denoise")
