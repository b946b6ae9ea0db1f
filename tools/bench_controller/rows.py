"""The rows: what is measured, what the reference needed on two H200, what we want; and whether we have it."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tools.bench_controller.dispatch import (
    measure_cpu_tensor,
    measure_cuda_tensor,
    measure_empty_job,
    measure_first_yield,
)
from tools.bench_controller.failures import (
    measure_killed_rank,
    measure_peer_in_collective,
    measure_timeout,
    measure_unpicklable_kwarg,
    measure_unpicklable_yield,
)
from tools.bench_controller.fleets import Fleets, Setting
from tools.bench_controller.lifecycle import (
    measure_idle_cpu,
    measure_parent_killed,
    measure_shutdown,
    measure_twenty_starts,
)
from tools.bench_controller.measured import Measured
from tools.bench_controller.soak import measure_soak


@dataclass(frozen=True, slots=True)
class Unit:
    name: str
    per_base: float  # of a second, or of the whole

    def show(self, figure: float) -> str:
        return f"{figure * self.per_base:.3g} {self.name}"


MS, S, PERCENT = Unit("ms", 1e3), Unit("s", 1.0), Unit("%", 100.0)


@dataclass(frozen=True, slots=True)
class Limit:
    """In seconds, or a share of one."""

    on_gpus: float
    on_cpu: float

    def of(self, setting: Setting) -> float:
        return self.on_gpus if setting.on_gpus else self.on_cpu


@dataclass(frozen=True, slots=True)
class Row:
    slug: str
    title: str
    reference: str
    measure: Callable[[Fleets], Measured]
    unit: Unit = S
    limit: Limit | None = None  # of the median
    promise: str = ""  # in words, what the claims of the measurement must be true for
    needs_gpu: bool = False
    needs_peers: bool = False

    def fits(self, setting: Setting) -> bool:
        return (setting.on_gpus or not self.needs_gpu) and (setting.ranks > 1 or not self.needs_peers)

    def goal(self, setting: Setting) -> str:
        bound = f"<= {self.unit.show(self.limit.of(setting))}" if self.limit else ""
        return ", ".join(part for part in (bound, self.promise) if part)


@dataclass(frozen=True, slots=True)
class Verdict:
    row: Row
    goal: str
    measured: Measured
    met: bool


def judge(row: Row, measured: Measured, setting: Setting) -> Verdict:
    met = not measured.error and all(measured.claims.values())
    if met and row.limit is not None:
        met = statistics.median(measured.figures) <= row.limit.of(setting)
    return Verdict(row, row.goal(setting), measured, met)


def all_rows(soak_jobs: int) -> list[Row]:
    """In the order in which they are measured: those that leave their fleet idle come first and share it."""
    return [*jobs_that_go_well(), *failures(), *lifecycle(), *([soak(soak_jobs)] if soak_jobs else [])]


def jobs_that_go_well() -> list[Row]:
    return [
        Row(
            "empty-job", "empty job, dispatch to end of stream, p50", "11.4 ms",
            measure_empty_job, MS, Limit(1e-3, 1e-3),
        ),
        Row(
            "first-yield", "dispatch to first yield, p50", "1.18 ms",
            measure_first_yield, MS, Limit(0.5e-3, 0.5e-3),
        ),
        Row(
            "cpu-tensor", "64 MiB CPU tensor in, the same out, p50", "14.7 ms, aliased",
            measure_cpu_tensor, MS, Limit(40e-3, 40e-3), "a snapshot",
        ),
        Row(
            "cuda-tensor", "64 MiB CUDA tensor in, the same out, p50", "",
            measure_cuda_tensor, MS, Limit(5e-3, 5e-3), "a snapshot", needs_gpu=True,
        ),
        Row(
            "unpicklable-kwarg", "a keyword that cannot be pickled", "wedges, poisons the fleet",
            measure_unpicklable_kwarg, promise="refused in the caller, fleet unharmed",
        ),
        Row(
            "idle-cpu", "idle fleet, CPU per rank", "0.4-1.4 %",
            measure_idle_cpu, PERCENT, Limit(1e-3, 1e-3),
        ),
    ]  # fmt: skip


def failures() -> list[Row]:
    return [
        Row(
            "killed-rank", "a rank is SIGKILLed mid-job: error at the caller", "4.6 s",
            measure_killed_rank, S, Limit(0.5, 0.1), "names the rank",
        ),
        Row(
            "peer-in-collective", "a rank raises, the others wait in a collective", "only at the job's time-out",
            measure_peer_in_collective, S, Limit(0.5, 0.5), "with rank and traceback", needs_peers=True,
        ),
        Row(
            "unpicklable-yield", "a yield that cannot be pickled", "vanishes",
            measure_unpicklable_yield, S, Limit(0.5, 0.5), "names rank and type",
        ),
        Row(
            "timeout-hang", "job time-out of 2 s on a hang", "2.6 s",
            partial(measure_timeout, task="sleep"), S, Limit(2.2, 2.2),
        ),
        Row(
            "timeout-yielding", "the same while other ranks keep yielding", "never",
            partial(measure_timeout, task="hang_beside_yields"), S, Limit(2.2, 2.2), needs_peers=True,
        ),
    ]  # fmt: skip


def lifecycle() -> list[Row]:
    parent_killed = Limit(2.0, 0.5)
    return [
        Row("shutdown", "shutdown of an idle fleet", "11.2 s", measure_shutdown, S, Limit(2.0, 0.5)),
        Row(
            "parent-killed-sleeping", "parent SIGKILLed, ranks sleep: last one gone", "3.1 s",
            partial(measure_parent_killed, task="sleep"), S, parent_killed,
        ),
        Row(
            "parent-killed-native", "the same, ranks in a C call with the GIL", "never",
            partial(measure_parent_killed, task="sleep_holding_gil"), S, parent_killed,
        ),
        Row(
            "parent-killed-collective", "the same, ranks in a collective", "",
            partial(measure_parent_killed, task="wait_in_collective"), S, parent_killed, needs_peers=True,
        ),
        Row(
            "twenty-starts", "20 fleets started at the same moment", "a race for ports",
            measure_twenty_starts, promise="no clash",
        ),
    ]  # fmt: skip


def soak(jobs: int) -> Row:
    promise = "RSS grows < 1 %, nothing is left open"
    return Row(
        "soak", f"soak of {jobs} jobs: growth of RSS", "", partial(measure_soak, jobs=jobs), PERCENT, None, promise
    )
