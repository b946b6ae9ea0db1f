"""What became of the attempts, from the events of all jobs, and how soon a job was begun again that was hit."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from jobs.events import EVENTS_KEY
from tools.chaos.storm import Happened

LETTERS = 120  # of a reason
OVER = ("attempt_lost", "finished", "failed", "dead")  # what ends an attempt


@dataclass(frozen=True, slots=True)
class Told:
    """One event."""

    at: float  # Unix time
    kind: str
    attempt: int
    fields: Mapping[str, Any]


Story = Sequence[Told]  # of one job


def read_stories(redis: Redis, job_ids: Iterable[str]) -> list[Story]:
    return [[_read(*entry) for entry in redis.xrange(EVENTS_KEY.format(job_id=job_id))] for job_id in job_ids]


def _read(entry_id: bytes, entry: Mapping[bytes, bytes]) -> Told:
    fields = cast(dict[str, Any], json.loads(entry[b"event"]))
    return Told(int(entry_id.split(b"-")[0]) / 1e3, fields["kind"], fields.get("attempt", 0), fields)


def describe_attempts(stories: Sequence[Story]) -> dict[str, object]:
    told = [event for story in stories for event in story]
    losses = [event.fields for event in told if event.kind == "attempt_lost"]
    last = [event.fields["losses"][-1] for event in told if event.kind == "dead"]  # told with the job's end
    charges = [loss["charge"] for loss in losses] + [loss["kind"] for loss in last]
    reasons = Counter(_plain(loss["reason"]) for loss in (*losses, *last))
    return {
        "started": sum(event.kind == "started" for event in told),
        "lost": dict(Counter(charges)),
        "reasons": dict(reasons.most_common()),
    }


def _plain(reason: str) -> str:
    """Without what differs from one to the next."""
    return re.sub(r"\S+-[0-9a-f]{8}\b|\b[0-9a-f]{32}\b|\d+(\.\d+)?", "#", reason)[:LETTERS]


def describe_faults(happened: Sequence[Happened], stories: Sequence[Story]) -> dict[str, object]:
    """By kind: how often, and how long a job waited that its worker was at."""
    kinds = sorted({fault.kind for fault in happened})
    return {kind: _describe_kind([fault for fault in happened if fault.kind == kind], stories) for kind in kinds}


def _describe_kind(faults: Sequence[Happened], stories: Sequence[Story]) -> dict[str, object]:
    waits = [wait_s for fault in faults for wait_s in find_restarts(fault, stories)]
    figures = {"median_s": round(statistics.median(waits), 2), "longest_s": round(max(waits), 2)} if waits else {}
    met = sum(bool(fault.victim) for fault in faults)
    return {"happened": met, "met_nobody": len(faults) - met, "jobs_begun_again": {"jobs": len(waits), **figures}}


def find_restarts(fault: Happened, stories: Sequence[Story]) -> list[float]:
    """For each job that the worker was at: seconds from the fault to the job's next start, if there was one."""
    waits = [_find_restart(fault, story) for story in stories if fault.worker]
    return [wait_s for wait_s in waits if wait_s is not None]


def _find_restart(fault: Happened, story: Story) -> float | None:
    past = [told for told in story if told.at <= fault.at and told.kind in ("started", *OVER)]
    if not past or past[-1].kind != "started" or past[-1].fields["worker"] != fault.worker:
        return None
    return next((told.at - fault.at for told in story if told.at > fault.at and told.kind == "started"), None)
