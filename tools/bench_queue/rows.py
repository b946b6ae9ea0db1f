"""The rows: what is measured, what we want, and whether we have it. A row without a goal informs."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tools.bench_queue.farm import Farm
from tools.bench_queue.following import measure_followers
from tools.bench_queue.many_jobs import measure_batch_file, measure_status, measure_submit_many
from tools.bench_queue.measured import Amount, Measured
from tools.bench_queue.records import measure_record_memory
from tools.bench_queue.render import measure_busy_calls, measure_idle_calls, measure_render
from tools.bench_queue.small_jobs import measure_empty_job, measure_enqueue
from tools.figures import percentile_95


@dataclass(frozen=True, slots=True)
class Goal:
    """Of the median, or of the slow end."""

    limit: float
    at_least: bool = False
    of_p95: bool = False  # needs two figures

    def is_met(self, figures: Sequence[float]) -> bool:
        figure = percentile_95(figures) if self.of_p95 else statistics.median(figures)
        return figure >= self.limit if self.at_least else figure <= self.limit


@dataclass(frozen=True, slots=True)
class Row:
    slug: str
    title: str
    measure: Callable[[Farm, Amount], Measured]
    unit: str
    goal: Goal | None = None
    needs_store: bool = False  # measured with each

    def show(self, figure: float) -> str:
        return f"{figure:,.0f} {self.unit}" if figure >= 100 else f"{figure:.3g} {self.unit}"

    def show_goal(self) -> str:
        if self.goal is None:
            return ""
        of = "p95 " if self.goal.of_p95 else ""
        return f"{of}{'>=' if self.goal.at_least else '<='} {self.show(self.goal.limit)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    row: Row
    store: str  # scheme of the store it was measured with, if that matters
    measured: Measured

    @property
    def name(self) -> str:
        return f"{self.row.slug}-{self.store}" if self.store else self.row.slug

    @property
    def met(self) -> bool:
        """Whether all is as it should be, the goal included if there is one."""
        measured, goal = self.measured, self.row.goal
        if measured.error or not all(measured.claims.values()):
            return False
        return goal is None or goal.is_met(measured.figures)


ROWS = [
    Row("enqueue", "submits of one client", measure_enqueue, "jobs/s", Goal(1000, at_least=True)),
    Row(
        "empty-job", "empty job: submit to finished, less the fleet alone, p50",
        measure_empty_job, "ms", Goal(30), needs_store=True,
    ),
    Row(
        "render", "render: claim to finished, less the runner's own time, of that; a tenth of it is decode",
        partial(measure_render, decode_share=0.1), "%", Goal(1), needs_store=True,
    ),
    Row("render-burst", "the same, all segments come at once, at the end", measure_render, "%", needs_store=True),
    Row("busy-calls", "Redis commands while a worker renders", measure_busy_calls, "a second"),
    Row("idle-calls", "Redis commands while a worker waits", measure_idle_calls, "a second"),
    Row(
        "followers", "50 followers of one job, 1,000 others queued: an event told to each of them having it",
        measure_followers, "ms", Goal(100, of_p95=True),
    ),
    Row("record-memory", "Redis memory that a finished render leaves", measure_record_memory, "bytes", Goal(50_000)),
    Row("submit-many", "submits of one client, many at once", measure_submit_many, "jobs/s", Goal(1000, at_least=True)),
    Row("batch-file", "`h3render batch submit` of a CSV, start to end", measure_batch_file, "s", Goal(10)),
    Row("status", "status of a job in the middle of its queue", partial(measure_status, of="middle"), "ms"),
    Row("status-queued", "of one that waits alone", partial(measure_status, of="alone"), "ms"),
    Row("status-running", "of one that runs", partial(measure_status, of="running"), "ms"),
]  # fmt: skip
