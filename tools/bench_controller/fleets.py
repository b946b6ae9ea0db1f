"""The fleets that are measured. Knows no row."""

from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tools.bench_controller.probe import Probe
from worker.mgpu import MGPUController, State

START_LIMIT_S = 240.0  # twenty fleets on two cores need one minute
JOB_LIMIT_S = 30.0  # of a job that should end by itself


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the fleets run, and how large they are."""

    backend: Literal["nccl", "gloo"]
    ranks: int

    @property
    def on_gpus(self) -> bool:
        return self.backend == "nccl"

    def start_fleet(self, **setup: object) -> MGPUController:
        controller = MGPUController(Probe, num_gpus=self.ranks, backend=self.backend)
        controller.start(timeout=START_LIMIT_S, **setup)
        return controller


class Fleets:
    """One fleet at a time: what leaves it idle hands it on."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._current: MGPUController | None = None

    def idle(self) -> MGPUController:
        """Any fleet that waits for a job."""
        if self._current is None or self._current.status().state is not State.IDLE:
            return self.fresh()
        return self._current

    def fresh(self, **setup: object) -> MGPUController:
        """A fleet that has done nothing yet."""
        self.close()
        self._current = self.setting.start_fleet(**setup)
        return self._current

    def close(self) -> None:
        if self._current is not None:
            self._current.shutdown(graceful_timeout=5.0 if self._current.is_alive else 0.0)
            self._current = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
