"""What a batch has come to: a record of each row, and the figures of all. Times are seconds since 1970."""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from redis import Redis

from jobs.batch.chunks import in_chunks
from jobs.batch.history import Told, ask_told, parse_told
from jobs.batch.progress import Counts, RowState, find_cost
from jobs.batch.record import BatchRow
from jobs.batch.states import RowStatus, ask_statuses, parse_statuses
from jobs.connection import redis_errors
from jobs.lease import Charge
from jobs.operation import pipeline
from jobs.request import FPS

LOGS_A_CALL = 100  # of some hundred events each
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a cell that begins so is calculated by spreadsheets


@dataclass(frozen=True, slots=True)
class RowReport:
    """One row, all that is known."""

    status: RowStatus
    told: Told

    @property
    def row(self) -> BatchRow:
        return self.status.row

    @property
    def state(self) -> RowState:
        return self.status.state

    @property
    def video_s(self) -> float:
        """What there is to be seen."""
        request = self.told.request
        return request.frames / FPS if request and self.state is RowState.FINISHED else 0.0

    @property
    def reason(self) -> str:
        """Why there is no result; empty if there is one, or nothing has happened yet."""
        if self.state is RowState.UNKNOWN:
            return "its record is gone: it ended more than 30 days ago, or was dropped"
        if self.state is RowState.NOT_QUEUED:
            return "its submit was broken off: run it again"
        has_ended = self.state in (RowState.FAILED, RowState.DEAD, RowState.CANCELED)
        return self.told.reason or ("no reason was told" if has_ended else "")


@dataclass(frozen=True, slots=True)
class Figures:
    """A batch in numbers."""

    counts: Counts
    attempts: int
    lost: dict[Charge, int]  # attempts that were lost, by what they count as
    first_queued_at: float | None
    last_ended_at: float | None
    wall_s: float  # from the one to the other, or until now if rows are left
    busy_s: float  # of all attempts, lost ones too
    video_s: float
    cost: float | None  # None without a price

    def to_dict(self) -> dict[str, object]:
        return {"rows": self.counts.rows, **asdict(self), "lost": {str(kind): n for kind, n in self.lost.items()}}


def read_reports(redis: Redis, rows: Sequence[BatchRow]) -> list[RowReport]:
    """Raises RedisUnavailable."""
    return [report for chunk in in_chunks(rows, LOGS_A_CALL) for report in _read_chunk(redis, chunk)]


def _read_chunk(redis: Redis, rows: Sequence[BatchRow]) -> Iterator[RowReport]:
    """Status and events on one way: they are of one moment."""
    statuses = ask_statuses(rows)
    with redis_errors():
        answers = pipeline(*statuses, *map(ask_told, rows))(redis)
    told = answers[len(statuses) :]
    return map(RowReport, parse_statuses(rows, answers[: len(statuses)]), map(parse_told, told))


def count_up(reports: Sequence[RowReport], now: float, price_per_hour: float | None = None) -> Figures:
    """The figures at a time."""
    times = [report.status.times for report in reports]
    counts = Counts.of(time.state for time in times)
    lost = sum((report.told.lost for report in reports), Counter[Charge]())
    first = min((time.queued_at for time in times if time.queued_at is not None), default=None)
    last = max((time.ended_at for time in times if time.ended_at is not None and not time.state.is_left), default=None)
    until = now if counts.left or last is None else last
    busy_s = sum(time.busy_s(now) for time in times)
    return Figures(
        counts=counts,
        attempts=sum(time.attempts for time in times),
        lost={charge: lost[charge] for charge in Charge},
        first_queued_at=first,
        last_ended_at=last,
        wall_s=0.0 if first is None else max(0.0, until - first),
        busy_s=busy_s,
        video_s=sum(report.video_s for report in reports),
        cost=find_cost(busy_s, price_per_hour),
    )


def iso(at: float | None) -> str:
    """In UTC, to the second; empty if it is not known."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def describe_row(report: RowReport, now: float, video: str = "") -> dict[str, object]:
    """One line of the CSV, and what `--json` prints. `video`: where it is."""
    request, times = report.told.request, report.status.times
    return {
        "line": report.row.line,
        "label": report.row.label,
        "job_id": report.row.job_id,
        "state": str(report.state),
        "attempts": times.attempts,
        "busy_s": round(times.busy_s(now), 3),
        "seed": request.seed if request else "",
        "width": request.width if request else "",
        "height": request.height if request else "",
        "frames": request.frames if request else "",
        "steps": request.steps if request else "",
        "queue": report.told.queue,
        "queued_at": iso(times.queued_at),
        "ended_at": iso(times.ended_at),
        "reason": report.reason,
        "video_url": video,
        "prompt": request.prompt if request else "",
    }


def write_csv(lines: Sequence[dict[str, object]]) -> bytes:
    """With a mark by which Excel knows that it is UTF-8, and an apostrophe before what it would calculate."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(lines[0]))
    writer.writeheader()
    writer.writerows({name: _as_text(cell) for name, cell in line.items()} for line in lines)
    return text.getvalue().encode("utf-8-sig", "backslashreplace")


def _as_text(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
