"""The same night with a fixed fleet: so many pods from its beginning until the night or the money is over.

It has the same jobs, and its n-th pod has the same fate. It is better looked after than most: whatever does not serve
is replaced as soon as that shows, nobody's call fails, and at the end of the night what runs may finish.
"""

from dataclasses import dataclass

from tools.simulate_nights.cloud import Cloud, RentedPod, Status
from tools.simulate_nights.farm import Farm
from tools.simulate_nights.nights import NIGHT_S, PLACES, USD_PER_HOUR, Job, Night
from tools.simulate_nights.timeline import HOUR_S, Timeline

LOOK_S = 30.0
PLACED_WITHIN_S, HEARD_WITHIN_S, SILENT_S = 1200.0, 1800.0, 300.0  # after which a pod is replaced
FINISH_S = HOUR_S  # after the night


@dataclass(slots=True)
class FixedFleet:
    """So many pods, and what they may cost together."""

    night: Night
    count: int
    usd: float
    timeline: Timeline
    farm: Farm
    cloud: Cloud
    jobs: list[Job]

    @classmethod
    def of(cls, night: Night, count: int, usd: float) -> "FixedFleet":
        timeline = Timeline()
        farm = Farm(timeline)
        jobs = night.draw_jobs()
        farm.submit(jobs)
        cloud = Cloud(night, timeline, farm, lambda _: False)
        return cls(night, count, usd, timeline, farm, cloud, jobs)

    def run(self) -> None:
        while self.timeline.now_s < NIGHT_S and not self._is_spent():
            self._replace()
            self.timeline.advance(LOOK_S)
        for worker in self.farm.workers.values():
            self.farm.pause(worker)
        while self.cloud.living:
            is_over = self._is_spent() or self.timeline.now_s >= NIGHT_S + FINISH_S
            for pod in self.cloud.living:
                if is_over or not self._is_busy(pod):
                    self.cloud.end(pod, 0.0)
            self.timeline.advance(LOOK_S)

    def _is_spent(self) -> bool:
        """By the next look."""
        return self.cloud.usd + len(self.cloud.living) * USD_PER_HOUR * LOOK_S / HOUR_S > self.usd

    def _replace(self) -> None:
        for pod in self.cloud.living:
            if self._is_useless(pod):
                self.cloud.end(pod, 0.0)
        self.timeline.advance(0.0)
        free = [place for place in PLACES if self.cloud.has_stock(place)]
        for number in range(self.count - len(self.cloud.living) if free else 0):
            name = f"fixed-{len(self.cloud.pods)}-{number}"
            self.cloud.create(name, free[0], lease_until_s=float("inf"))

    def _is_useless(self, pod: RentedPod) -> bool:
        age_s, worker = self.timeline.now_s - pod.created_s, self.farm.workers.get(pod.name)
        if worker is not None:
            silent_since_s = worker.silent_since_s
            return silent_since_s is not None and self.timeline.now_s - silent_since_s > SILENT_S
        if pod.is_unfit or pod.status is Status.EXITED:
            return True
        return age_s > (HEARD_WITHIN_S if pod.status is Status.RUNNING else PLACED_WITHIN_S)

    def _is_busy(self, pod: RentedPod) -> bool:
        worker = self.farm.workers.get(pod.name)
        return worker is not None and worker.is_busy
