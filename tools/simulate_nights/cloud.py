"""The pods as they truly are, and what they truly cost: each from its creation until it is gone."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tools.simulate_nights.farm import Farm
from tools.simulate_nights.nights import DISK_USD_PER_HOUR, STOPPED_USD_PER_HOUR, USD_PER_HOUR, Fate, Fault, Night
from tools.simulate_nights.timeline import HOUR_S, Timeline

PLACED_S, PULLED_SHARE = 30.0, 0.6  # a placed pod pulls its image; so much of a boot is over once it runs
EXITS_AFTER_S = 60.0  # since it runs
SHOWN_S = 60.0  # a pod that vanished may be listed as TERMINATED for so long


class Status(StrEnum):
    """In RunPod's words."""

    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    TERMINATED = "TERMINATED"


@dataclass(eq=False, slots=True)
class RentedPod:
    """One machine."""

    number: int
    name: str
    place: str
    created_s: float
    lease_until_s: float
    fate: Fate
    status: Status = Status.PROVISIONING
    stopped_s: float | None = None  # then its disk alone bills
    gone_s: float | None = None
    end_asked_s: float | None = None  # for the first time
    is_unfit: bool = False  # by its own word

    @property
    def id(self) -> str:
        return f"pod{self.number}"

    @property
    def token(self) -> str:
        return self.name.rsplit("-", 1)[-1]

    def runs_at(self, at_s: float) -> bool:
        """So that it costs its whole price."""
        return self.created_s <= at_s and all(end_s is None or end_s > at_s for end_s in (self.stopped_s, self.gone_s))

    def find_usd(self, until_s: float) -> float:
        """Up to then."""
        end_s = until_s if self.gone_s is None else min(self.gone_s, until_s)
        stopped_s = end_s if self.stopped_s is None else min(self.stopped_s, end_s)
        ran_s = max(0.0, stopped_s - self.created_s)
        return (ran_s * (USD_PER_HOUR + DISK_USD_PER_HOUR) + (end_s - stopped_s) * STOPPED_USD_PER_HOUR) / HOUR_S


class Cloud:
    """All pods of a night."""

    def __init__(self, night: Night, timeline: Timeline, farm: Farm, is_paused: Callable[[str], bool]) -> None:
        """is_paused  whether a worker of that name starts out paused"""
        self.pods: dict[str, RentedPod] = {}  # also those that are gone
        self._night, self._timeline, self._farm, self._is_paused = night, timeline, farm, is_paused
        self._gaps = night.draw_gaps()
        self._gone_usd, self._living = 0.0, dict[str, RentedPod]()

    @property
    def living(self) -> list[RentedPod]:
        return list(self._living.values())

    @property
    def usd(self) -> float:
        """That all pods have cost by now."""
        return self._gone_usd + sum(pod.find_usd(self._timeline.now_s) for pod in self._living.values())

    def has_stock(self, place: str) -> bool:
        return (place, int(self._timeline.now_s / HOUR_S)) not in self._gaps

    def create(self, name: str, place: str, lease_until_s: float) -> RentedPod:
        number = len(self.pods) + 1
        fate, now_s = self._night.draw_fate(number), self._timeline.now_s
        pod = RentedPod(number, name, place, now_s, lease_until_s, fate)
        self.pods[pod.id] = self._living[pod.id] = pod
        if fate.fault is not Fault.STUCK:
            self._schedule_boot(pod)
        self._after(pod, fate.vanishes_after_s, lambda: self._go(pod))
        self._after(pod, fate.silent_after_s, lambda: self._farm.silence_worker(name, fate.silent_for_s))
        return pod

    def _schedule_boot(self, pod: RentedPod) -> None:
        boot_s = pod.fate.boot_s
        self._after(pod, PLACED_S, lambda: self._become(pod, Status.STARTING))
        self._after(pod, PULLED_SHARE * boot_s, lambda: self._become(pod, Status.RUNNING))
        match pod.fate.fault:
            case Fault.NONE:
                self._after(pod, boot_s, lambda: self._serve(pod))
            case Fault.EXITS:
                self._after(pod, PULLED_SHARE * boot_s + EXITS_AFTER_S, lambda: self._exit(pod))
            case Fault.UNFIT | Fault.WRONG:
                self._after(pod, boot_s, lambda: self._refuse(pod))

    def _after(self, pod: RentedPod, seconds: float, happening: Callable[[], None]) -> None:
        """Unless it is gone by then."""
        if seconds < 24 * HOUR_S:
            self._timeline.after(seconds, lambda: happening() if pod.gone_s is None else None)

    def _become(self, pod: RentedPod, status: Status) -> None:
        pod.status = status

    def _exit(self, pod: RentedPod) -> None:
        pod.status, pod.stopped_s = Status.EXITED, self._timeline.now_s

    def _serve(self, pod: RentedPod) -> None:
        self._farm.start_worker(pod.name, is_paused=self._is_paused(pod.name))

    def _refuse(self, pod: RentedPod) -> None:
        pod.is_unfit = True

    def end(self, pod: RentedPod, within_s: float) -> None:
        """It goes some time after this."""
        self._after(pod, within_s, lambda: self._go(pod))

    def _go(self, pod: RentedPod) -> None:
        pod.status, pod.gone_s = Status.TERMINATED, self._timeline.now_s
        del self._living[pod.id]
        self._gone_usd += pod.find_usd(pod.gone_s)
        self._farm.end_worker(pod.name)
