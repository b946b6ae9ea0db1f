"""What a report has to say of raw rows: its figures, its lines, and its words on the page. Pure arithmetic.

Written without a look at the farm's own: rounding and wording are part of what is checked.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tools.overnight.raw import CHARGES, FRAMES_A_SECOND, RawRow

STATES = ("finished", "failed", "dead", "canceled", "running", "queued", "not_queued", "unknown")

WITHOUT_RESULT = ("failed", "dead", "canceled", "not_queued", "unknown")  # and none is to come


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a batch whose rows have all ended."""

    rows: int
    counts: dict[str, int]  # by state
    attempts: int
    lost: dict[str, int]  # by charge
    first_queued_at: float
    last_ended_at: float
    wall_s: float
    busy_s: float
    video_s: float
    cost: float


def add_up(rows: Sequence[RawRow], price: float) -> Totals:
    states, lost = Counter(row.state for row in rows), sum((row.lost for row in rows), Counter[str]())
    first, last = min(row.queued_at for row in rows), max(row.ended_at or 0.0 for row in rows)
    busy_s = sum(row.busy_s for row in rows)
    return Totals(
        rows=len(rows),
        counts={state: states[state] for state in STATES},
        attempts=sum(row.attempts for row in rows),
        lost={charge: lost[charge] for charge in CHARGES},
        first_queued_at=first,
        last_ended_at=last,
        wall_s=last - first,
        busy_s=busy_s,
        video_s=sum(row.video_s for row in rows),
        cost=busy_s * price / 3600,
    )


def tell_row(row: RawRow) -> dict[str, object]:
    """Its line of the table, without the video's address."""
    request = row.request
    return {
        "line": row.line,
        "label": row.label,
        "job_id": row.job_id,
        "state": row.state,
        "attempts": row.attempts,
        "busy_s": round(row.busy_s, 3),
        **{name: request[name] for name in ("seed", "width", "height", "frames", "steps")},
        "queue": row.queue,
        "queued_at": to_second(row.queued_at),
        "ended_at": "" if row.ended_at is None else to_second(row.ended_at),
        "reason": row.reason,
        "prompt": request["prompt"],
    }


def to_second(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")


# --- the page


def tell_tiles(totals: Totals) -> dict[str, str]:
    """By their names; blanks between words are one."""
    counts, lost = totals.counts, [f"{count} {charge}" for charge, count in totals.lost.items() if count]
    without = sum(counts[state] for state in WITHOUT_RESULT)
    hours = f" {totals.busy_s / 3600:,.2f} h" if totals.busy_s >= 3600 else ""
    exact = f" {totals.video_s:,.1f} s" if totals.video_s >= 60 else ""
    return {
        "finished": f"{counts['finished']:,} of {say_many(totals.rows, 'row')}",
        "without a result": f"{without:,}",
        "from first to last": say_time(totals.wall_s),
        "machines busy": f"{say_time(totals.busy_s)}{hours} in all attempts",
        "attempts": f"{totals.attempts:,} " + (f"lost: {', '.join(lost)}" if lost else "none lost"),
        "video": say_time(totals.video_s) + exact,
        "cost": f"{totals.cost:,.2f} of busy machines",
    }


def tell_legend(totals: Totals) -> list[str]:
    return [f"{count:,} {state.replace('_', ' ')}" for state, count in totals.counts.items() if count]


def tell_lead(totals: Totals) -> str:
    """What the line under the title begins with."""
    return f"first queued {to_minute(totals.first_queued_at)} · last ended {to_minute(totals.last_ended_at)} · as of "


def to_minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def order_cards(rows: Sequence[RawRow]) -> list[RawRow]:
    """Rows without a result come first; else the file's order stays."""
    lost = [row for row in rows if row.state in WITHOUT_RESULT]
    return lost + [row for row in rows if row.state not in WITHOUT_RESULT]


def tell_meta(row: RawRow) -> str:
    request = row.request
    told = [f"line {row.line}", f"{request['width']}x{request['height']}"]
    told += [f"{request['frames'] / FRAMES_A_SECOND:.1f} s", say_many(request["steps"], "step")]
    told.append(f"seed {request['seed']}")
    if row.attempts:
        told += [say_many(row.attempts, "attempt"), f"busy {say_time(row.busy_s)}"]
    return " · ".join(told)


def say_many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def say_time(seconds: float) -> str:
    """A night has no days."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [(hours, "h"), (minutes, "min")] if hours else [(minutes, "min"), (rest, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
