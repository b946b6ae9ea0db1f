"""What a batch has come to, from Redis' own keys and the store's own objects.

Shares no code with the farm: what keys, fields and objects mean is written here a second time, on purpose.
"""

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from tools.chaos.check import Objects

FRAMES_A_SECOND = 24
ENDS = {"finished": "finished", "failed": "failed", "dead": "dead", "canceled": "canceled"}  # last event -> state
ATTEMPT_ENDS = ("attempt_lost", *ENDS)
CHARGES = ("fatal", "interrupted", "drained")
VANISHED = "the lease ran out"  # told when that is noticed, which may be later
CLOCK_S = 0.05  # within one move of a job, whose times are taken at two moments


@dataclass(slots=True)
class RawRow:
    """One row."""

    label: str
    line: int
    job_id: str
    order: int
    request: dict[str, Any]  # as the queue carried it
    queue: str
    state: str
    attempts: int
    lost: Counter[str]  # attempts by charge
    busy_s: float
    queued_at: float  # seconds since 1970
    ended_at: float | None
    reason: str
    previews: list[str]  # keys, the latest last
    video_key: str  # empty without a result
    report_key: str  # likewise: of the render's own report
    doubts: list[str] = field(default_factory=list)  # where Redis and the store contradict themselves

    @property
    def video_s(self) -> float:
        return self.request["frames"] / FRAMES_A_SECOND if self.state == "finished" else 0.0


def read_rows(redis: Redis, objects: Objects, batch: str) -> list[RawRow]:
    """All rows of a batch, in the order of its file."""
    records = [json.loads(text) for text in redis.hgetall(f"h3:batch:{batch}").values()]
    return [_read_row(redis, objects, record) for record in sorted(records, key=lambda record: record["order"])]


def _read_row(redis: Redis, objects: Objects, record: dict[str, Any]) -> RawRow:
    job_id = record["job_id"]
    fields = {name.decode(): value for name, value in redis.hgetall(f"rq:job:{job_id}").items()}
    events = [
        (int(entry.split(b"-")[0]) / 1000, json.loads(told[b"event"]))
        for entry, told in redis.xrange(f"h3:events:{job_id}")
    ]
    last = events[-1][1]
    row = RawRow(
        label=record["label"],
        line=record["line"],
        job_id=job_id,
        order=record["order"],
        request=json.loads(zlib.decompress(fields["data"]))[3]["request"],
        queue=fields["origin"].decode(),
        state=ENDS.get(last["kind"], "running" if b"started" in fields["status"] else "queued"),
        attempts=sum(event["kind"] == "started" for _, event in events),
        lost=_count_lost(events),
        busy_s=int(fields.get("h3_busy_ms", 0)) / 1000,
        queued_at=int(fields["h3_queued_ms"]) / 1000,
        ended_at=int(fields["h3_ended_ms"]) / 1000 if "h3_ended_ms" in fields else None,
        reason=_tell_reason(last),
        previews=[event["key"] for _, event in events if event["kind"] == "preview_ready"],
        video_key=last.get("video_key", ""),
        report_key=last.get("report_key", ""),
    )
    row.doubts = list(_doubt_times(row, events)) + list(_doubt_record(row, fields)) + list(_doubt_store(row, objects))
    return row


def _count_lost(events: list[tuple[float, dict[str, Any]]]) -> Counter[str]:
    """A dead job's last loss is told by its end."""
    lost = [event["charge"] for _, event in events if event["kind"] == "attempt_lost"]
    lost += [event["losses"][-1]["kind"] for _, event in events if event["kind"] == "dead"]
    return Counter(lost)


def _tell_reason(last: dict[str, Any]) -> str:
    match last["kind"]:
        case "failed":
            return str(last["reason"])
        case "dead":
            losses = last["losses"][::-1]  # the last one first
            return "\n".join(f"attempt {loss['attempt']} on {loss['worker']}: {loss['reason']}" for loss in losses)
        case "canceled":
            return "canceled"
        case "attempt_lost":
            return f"attempt {last['attempt']} was lost: {last['reason']}"
    return ""


# --- Redis says everything twice


def _doubt_times(row: RawRow, events: list[tuple[float, dict[str, Any]]]) -> Iterator[str]:
    """The record's times are those of the events."""
    least_s, most_s = _find_busy(events)
    rounding_s = CLOCK_S * max(1, row.attempts)
    if not least_s - rounding_s <= row.busy_s <= most_s + rounding_s:
        yield f"its record says that it was busy for {row.busy_s} s, its events {least_s:.3f} to {most_s:.3f} s"
    if abs(events[0][0] - row.queued_at) > CLOCK_S:
        yield f"its record says that it was queued at {row.queued_at}, its events {events[0][0]}"
    if row.ended_at is not None and abs(events[-1][0] - row.ended_at) > CLOCK_S:
        yield f"its record says that it ended at {row.ended_at}, its events {events[-1][0]}"


def _find_busy(events: list[tuple[float, dict[str, Any]]]) -> tuple[float, float]:
    """From the begin of each attempt to its end; of a vanished worker's, to some time after the last that it told."""
    began_at = heard_at = least_s = most_s = 0.0
    for at, event in events:
        if event["kind"] == "started":
            began_at = at
        elif event["kind"] in ATTEMPT_ENDS and began_at:
            is_vanished = VANISHED in event.get("reason", "") or event["kind"] == "dead"
            least_s, most_s = least_s + (heard_at if is_vanished else at) - began_at, most_s + at - began_at
            began_at = 0.0
        heard_at = at
    return least_s, most_s


def _doubt_record(row: RawRow, fields: dict[str, bytes]) -> Iterator[str]:
    outcome, attempts = fields.get("h3_outcome", b"").decode(), int(fields.get("h3_attempts", 0))
    if outcome != (row.state if row.state in ENDS.values() else ""):
        yield f"its record says {outcome!r}, its events {row.state}"
    if attempts != row.attempts:
        yield f"its record says {attempts} attempts, its events {row.attempts}"


def _doubt_store(row: RawRow, objects: Objects) -> Iterator[str]:
    """A result is there if, and only if, the job has finished; of this request, with its video."""
    body = objects.read(f"{row.job_id}/result.json")
    if (body is not None) != (row.state == "finished"):
        yield f"it is {row.state}, and its result is {'there' if body else 'missing'}"
    if body is None:
        return
    result = json.loads(body)
    if result["request"] != row.request:
        yield "its result is of another request"
    if result["video_key"] != row.video_key or objects.read(row.video_key) is None:
        yield f"its video {row.video_key} is not where it is told to be"
    seconds = _playlist_s(objects, result["playlist_key"])
    if abs(seconds - row.video_s) > 0.01:
        yield f"its segments last {seconds:.3f} s, its frames {row.video_s:.3f} s"


def _playlist_s(objects: Objects, key: str) -> float:
    lines = (objects.read(key) or b"").decode().splitlines()
    return sum(float(line.removeprefix("#EXTINF:").rstrip(",")) for line in lines if line.startswith("#EXTINF:"))
