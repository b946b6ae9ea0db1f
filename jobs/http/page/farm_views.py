"""What the page shows of workers, queues and batches, as plain values for templates. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from jobs.batch.progress import Counts, Progress, RowState
from jobs.batch.states import RowStatus
from jobs.http.page.views import Finished, Lost, Running, Waiting, cut, has_poster, is_wide
from jobs.in_words import say_duration
from jobs.request import ResolvedRequest
from jobs.workers import WorkerRecord, WorkerState

_TONES = {
    WorkerState.READY: "good",
    WorkerState.BUSY: "busy",
    WorkerState.STARTING: "idle",
    WorkerState.PAUSED: "warn",
    WorkerState.DRAINING: "warn",
    WorkerState.UNHEALTHY: "bad",
    WorkerState.LOST: "bad",
}
_ROW_TONES = {
    RowState.FINISHED: "good",
    RowState.RUNNING: "busy",
    RowState.QUEUED: "idle",
    RowState.NOT_QUEUED: "warn",
    RowState.CANCELED: "warn",
    RowState.UNKNOWN: "warn",
    RowState.FAILED: "bad",
    RowState.DEAD: "bad",
}
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one GPU."""

    used_gib: float
    total_gib: float


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    state: str
    tone: str
    doing: str
    reason: str
    beat_at: datetime
    fleet: str  # how many processes, and what they hold
    memory: tuple[Memory, ...]


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    length: int
    is_paused: bool


@dataclass(frozen=True, slots=True)
class BatchTile:
    """One batch in the list."""

    name: str
    submitted_at: datetime
    ended: int
    rows: int
    counts: str  # in words


@dataclass(frozen=True, slots=True)
class BatchCell:
    """One row of a batch."""

    label: str
    line: int
    job_id: str  # empty: it has none
    state: str
    tone: str
    prompt: str
    detail: str
    reason: str
    has_poster: bool
    is_wide: bool


@dataclass(frozen=True, slots=True)
class Chip:
    """One choice of which rows are shown."""

    name: str
    value: str  # of the query
    count: int
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class BatchPage:
    name: str
    ended: int
    rows: int
    counts: str
    rate: str
    ends_at: datetime | None
    busy: str
    waiting_for: str
    chips: tuple[Chip, ...]
    cells: tuple[BatchCell, ...]
    matching: int  # rows, of which `cells` are the first
    can_cancel: bool
    can_retry: bool
    more: int  # how many to show next; 0 if all are there


@dataclass(frozen=True, slots=True)
class Farm:
    """All of the live part of the page."""

    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    waiting_in_all: int
    lost: tuple[Lost, ...]
    finished: tuple[Finished, ...]
    more_finished: int  # how many to show next; 0 if all are there
    workers: tuple[Worker, ...]
    queues: tuple[Queue, ...]
    batches: tuple[BatchTile, ...]

    @property
    def workers_alive(self) -> int:
        return sum(worker.tone != "bad" for worker in self.workers)

    @property
    def title(self) -> str:
        return f"{len(self.running)} running · h3render" if self.running else "h3render"


def show_worker(record: WorkerRecord) -> Worker:
    return Worker(
        name=record.name,
        state=str(record.state),
        tone=_TONES[record.state],
        doing=_say_doing(record),
        reason=cut(record.reason),
        beat_at=datetime.fromtimestamp(record.beat_at, UTC),
        fleet=f"{len(record.ranks)} rank{'' if len(record.ranks) == 1 else 's'}, fleet {record.fleet}",
        memory=tuple(Memory(round(gpu.used_bytes / _GIB, 1), round(gpu.total_bytes / _GIB, 1)) for gpu in record.gpus),
    )


def _say_doing(record: WorkerRecord) -> str:
    if record.job is None or not record.is_alive:
        return ""
    step = f" {record.job.step} of {record.job.steps}" if record.job.steps else ""
    return f"{record.job.phase}{step}"


def show_batch(name: str, submitted_at: datetime, counts: Counts) -> BatchTile:
    return BatchTile(name, submitted_at, counts.rows - counts.left - counts.not_queued, counts.rows, say_counts(counts))


def say_counts(counts: Counts) -> str:
    return counts.describe().partition(": ")[2]


def choose_rows(statuses: Sequence[RowStatus], chosen: str) -> list[RowStatus]:
    """Those of a state; all of them if none is named."""
    return [status for status in statuses if not chosen or status.state == chosen]


def list_chips(counts: Counts, chosen: str) -> tuple[Chip, ...]:
    states = [
        Chip(RowState(state).in_words, state, count, state == chosen)
        for state, count in asdict(counts).items()
        if count or state == chosen
    ]
    return (Chip("all", "", counts.rows, not chosen), *states)


def say_pace(progress: Progress) -> str:
    rate = progress.rate_per_hour
    return "" if rate is None else f"{rate:,.0f} an hour" if rate >= 10 else f"{rate:.3g} an hour"


def say_busy(progress: Progress) -> str:
    return say_duration(progress.busy_s) if progress.busy_s >= 1 else ""


def show_row(status: RowStatus, request: ResolvedRequest | None, reason: str) -> BatchCell:
    attempts = status.times.attempts
    detail = f"attempt {attempts}" if attempts > 1 else ""
    where = f"on {status.worker}" if status.worker and status.state is RowState.RUNNING else ""
    return BatchCell(
        label=cut(status.row.label, 120),
        line=status.row.line,
        job_id=status.row.job_id,
        state=status.state.in_words,
        tone=_ROW_TONES[status.state],
        prompt=cut(request.prompt) if request else "",
        detail=", ".join(part for part in (where, detail) if part),
        reason=cut(reason, 400),
        has_poster=has_poster(request),
        is_wide=is_wide(request),
    )


def list_workers(records: Iterable[WorkerRecord]) -> tuple[Worker, ...]:
    """Those that are alive first."""
    return tuple(map(show_worker, sorted(records, key=lambda record: (not record.is_alive, record.name))))
